"""`om-proxy import --from`: make threads of other programs' histories, with their times."""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from om_proxy.agents.models import find_price
from om_proxy.cli.answers import (
    confirm,
    escape_line,
    print_json,
    render_count,
    render_number,
    require_yes_or_terminal,
)
from om_proxy.cli.commands.notes import NO_LIMIT_S, NO_MODEL_MESSAGE
from om_proxy.cli.exit_status import CONFLICT, DECLINED, DONE
from om_proxy.cli.store_command import LocalApi, run_with_api
from om_proxy.cli.thread_choice import choose_tenant
from om_proxy.common.errors import BadRequest, Conflict, UsageError
from om_proxy.engine.policy import Policy, name_observer
from om_proxy.management.api.requests import RequestQuery, normalize_stored_name
from om_proxy.management.api.routes.export_import import import_messages
from om_proxy.management.api.routes.memory_work import ObserveRequest, observe
from om_proxy.management.api.routes.threads import TitleChange, set_title
from om_proxy.memory.lifecycle.economy import (
    NOTE_TOKENS_PER_MESSAGE_TOKEN,
    OBSERVER_PROMPT_TOKENS,
    OBSERVER_THINKING_TOKENS,
)
from om_proxy.memory.model import Key, Memory
from om_proxy.memory.tokens import estimate_tokens
from om_proxy.memory.value_bounds import MAX_TITLE_CHARS
from om_proxy.proof.conversation import Conversation, Message
from om_proxy.proof.readers.registry import read_history
from om_proxy.settings.config import load
from om_proxy.settings.identity.naming import normalize_name
from om_proxy.settings.identity.tenants import LOCAL_TENANT

MADE_UP_BEFORE = 315_532_800.0  # 1980: a reader counts from 1970 on where a history has no times


@dataclass(slots=True)
class Tally:
    """What was read, and what became of it."""

    threads: int = 0
    messages: int = 0
    present: int = 0  # threads that had all of their messages
    tokens: int = 0
    costs: list[float | None] = field(default_factory=list)  # dollars; None: no known price
    left_out: Counter[str] = field(default_factory=Counter)
    notices: Counter[str] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)


def run(options: argparse.Namespace) -> int:
    """Import the chosen conversations; before a model is asked, say what that costs, and ask."""
    if normalize_name(options.resource or "") is None:
        raise UsageError("name whose conversations these are with --resource")
    makes_notes = options.notes == "now"
    if options.dry_run or makes_notes:
        planned = plan_import(Policy(load(options.config)), options)
        if options.dry_run and options.json:
            print_json(planned)
            return DONE
        print("\n".join(render_plan(planned, options)), file=sys.stderr if options.json else None)
        if options.dry_run:
            return DONE
        require_yes_or_terminal(options)
        if not options.yes and not confirm("Import them, and have the notes made?"):
            return DECLINED
    return run_with_api(options, import_history, create=True, finds_due_work=makes_notes)


async def import_history(api: LocalApi, options: argparse.Namespace) -> int:
    """Import the conversations. One that cannot be imported stops no other."""
    tenant = await choose_owner(api, options.tenant)
    tally = Tally()
    for conversation in choose_conversations(options, tally):
        key = Key(tenant, *map(normalize_stored_name, (options.resource, conversation.id)))
        try:
            await _import_conversation(api, options, key, conversation, tally)
        except (Conflict, BadRequest) as exc:
            tally.refused.append(f"  {escape_line(conversation.id)}: {exc}")
    print_json(tally) if options.json else print("\n".join(render_result(tally, options)))
    return CONFLICT if tally.refused else DONE


async def choose_owner(api: LocalApi, named: str | None) -> str:
    """Return the tenant to whom the threads will belong: `auth.keys` may name one whose first
    threads these are."""
    configured = {key.tenant for key in api.config.settings.auth.keys}
    if named is not None and named in configured | {LOCAL_TENANT}:
        return named
    tenant = await choose_tenant(api.store, named)
    if tenant is None and len(configured) == 1:
        (tenant,) = configured
    if tenant is None:
        raise UsageError(
            "nobody has a memory in this store yet: let your client send one message through the "
            f"proxy first; for clients without a key on this machine, add --tenant {LOCAL_TENANT}"
        )
    return tenant


def choose_conversations(options: argparse.Namespace, tally: Tally) -> Iterator[Conversation]:
    """Yield the conversations to import, and count what is left out."""
    for name in options.file:
        for conversation in read_history(Path(name), options.program):
            tally.notices.update(conversation.notices)
            messages, calls = conversation.messages, conversation.calls
            if not messages or normalize_name(conversation.id) is None:
                tally.left_out["without messages or a name"] += 1
            elif calls and all(call.kind != "main" for call in calls):
                tally.left_out["of sub-agents"] += 1
            elif options.since and read_end(conversation) < options.since:
                tally.left_out["older than --since"] += 1
            else:
                yield conversation


def read_end(conversation: Conversation) -> float:
    """Return the unix seconds of the newest message."""
    at = conversation.messages[-1]["created_at"]
    assert isinstance(at, int | float)
    return at


def set_first_time(messages: Sequence[Message]) -> Iterator[Mapping[str, object]]:
    """Yield the messages; those before the first known time have that one. Without any, none has."""
    times = [at for one in messages if isinstance(at := one["created_at"], int | float)]
    first_at = next((at for at in times if at > MADE_UP_BEFORE), None)
    for message, at in zip(messages, times, strict=True):
        if first_at is None:
            yield {name: message[name] for name in message if name != "created_at"}
        else:
            yield {**message, "created_at": max(at, first_at)}


def find_model(conversation: Conversation) -> str | None:
    """Return the model that answered last, if the history names one."""
    return next((call.model for call in reversed(conversation.calls) if call.model), None)


async def _import_conversation(
    api: LocalApi,
    options: argparse.Namespace,
    key: Key,
    conversation: Conversation,
    tally: Tally,
) -> None:
    messages = list(set_first_time(conversation.messages))
    body = {"messages": messages, "model": find_model(conversation)}
    query = RequestQuery(resource=key.resource)
    answer = await api.ask(import_messages, options, key=key, query=query, body=orjson.dumps(body))
    tally.threads += bool(answer.created)
    tally.present += not answer.created
    tally.messages += answer.created
    # its program's title, or the person's own there; a thread that was there keeps its own
    title = (conversation.title or "")[:MAX_TITLE_CHARS].strip()
    if title and answer.created and not answer.same:
        await api.ask(set_title, options, key=key, body=TitleChange(title))
    if options.notes == "now":
        try:
            wish = ObserveRequest(all=True, wait=NO_LIMIT_S)
            await api.ask(observe, options, key=key, body=wish)
        except BadRequest as exc:
            if exc.code != "om_nothing_to_observe":
                raise


# ── the plan ──────────────────────────────────────────────────────────────────────────────────────


def plan_import(policy: Policy, options: argparse.Namespace) -> Tally:
    """Return what an import would read, and about what its notes would cost."""
    tally = Tally()
    for conversation in choose_conversations(options, tally):
        tokens = estimate_tokens(orjson.dumps(conversation.messages).decode())
        tally.threads += 1
        tally.messages += len(conversation.messages)
        tally.tokens += tokens
        if options.notes == "now":
            key = Key("", options.resource, conversation.id)
            memory = Memory(key=key, model=find_model(conversation))
            tally.costs.append(estimate_dollars(policy, memory, tokens))
    return tally


def estimate_dollars(policy: Policy, memory: Memory, tokens: int) -> float | None:
    """Return about what notes on so many tokens of messages cost; None: the price is not known.
    Raise UsageError if no memory model can be asked."""
    context = policy.context_without_request(memory)
    if context is None:
        raise UsageError(NO_MODEL_MESSAGE)
    limits = context.effective.limits
    base_url = context.inherited.base_url if context.inherited else None
    price = find_price(name_observer(context.effective, memory.model or "", base_url), base_url)
    if price is None:
        return None
    calls = math.ceil(tokens / (limits.interval_tokens or limits.observe_from_tokens))
    read_tokens = tokens + calls * OBSERVER_PROMPT_TOKENS
    written_tokens = tokens * NOTE_TOKENS_PER_MESSAGE_TOKEN + calls * OBSERVER_THINKING_TOKENS
    return read_tokens * price.input + written_tokens * price.output


# ── words ─────────────────────────────────────────────────────────────────────────────────────────


def render_plan(tally: Tally, options: argparse.Namespace) -> Iterator[str]:
    yield f"would be imported: {_render_size(tally)}, about {render_number(tally.tokens)} tokens"
    if options.notes == "now":
        known = [cost for cost in tally.costs if cost is not None]
        cost = f"about ${sum(known):.2f}" if len(known) == len(tally.costs) else "at unknown price"
        yield f"notes on all of them: {cost}"
    yield from _render_counts(tally)


def render_result(tally: Tally, options: argparse.Namespace) -> Iterator[str]:
    yield f"imported: {_render_size(tally)}"
    if tally.present:
        yield f"already there: {render_count(tally.present, 'thread')}"
    if tally.refused:
        yield f"refused: {render_count(len(tally.refused), 'thread')}"
        yield from tally.refused
    yield from _render_counts(tally)
    if tally.threads and options.notes == "later":
        yield (
            "no notes yet: the next request of a thread has them made, or `om-proxy notes observe "
            "THREAD --all`"
        )


def _render_size(tally: Tally) -> str:
    threads = render_count(tally.threads, "thread")
    return f"{threads} with {render_count(tally.messages, 'message')}"


def _render_counts(tally: Tally) -> Iterator[str]:
    for name, counts in (("left out", tally.left_out), ("while reading", tally.notices)):
        if counts:
            parts = (f"{kind}: {number}" for kind, number in sorted(counts.items()))
            yield f"{name}: {escape_line('; '.join(parts))}"
