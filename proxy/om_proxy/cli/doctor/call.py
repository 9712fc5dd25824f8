"""Ask the memory models for notes of two messages, and the clients' model a question with all that
memory adds to a prompt, to see what they take."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import orjson

from om_proxy.agents.model_access.completion import EVENT_STARTS
from om_proxy.agents.model_access.credentials import find_key, is_subscription_key
from om_proxy.agents.model_access.direct import QUESTION_PATHS, Direct, build_headers
from om_proxy.agents.model_access.litellm_adapter import LiteLLM
from om_proxy.agents.model_access.llm import LLM, Answer, Prompt, Routed, Target
from om_proxy.agents.model_access.retries import UNKNOWN_MODEL_STATUSES, CallBill
from om_proxy.agents.model_access.targets import choose_model, choose_targets
from om_proxy.agents.models import (
    TokenCounter,
    choose_default_model,
    find_abilities,
    find_small_model,
)
from om_proxy.agents.observer import Observed, Observer, ObserverTask
from om_proxy.cli.doctor.upstreams import Finding
from om_proxy.common.errors import ModelBusy, ModelError, Overloaded, Unusable, UpstreamError
from om_proxy.memory.model import EMPTY_CHAIN, Item, Message
from om_proxy.memory.prompt.context import Layout, adds_system_message, layout_without_system
from om_proxy.memory.prompt.tail import Piece
from om_proxy.memory.recall.offering import TOOL_NAMES
from om_proxy.settings.config import Effective, Settings
from om_proxy.settings.config.sections.service import UpstreamSettings
from om_proxy.settings.config.validation_messages import redact_credentials
from om_proxy.wire.apis.additions import Addition, Lessons, Trial
from om_proxy.wire.apis.api import Request, require_recall
from om_proxy.wire.apis.refusals import UNNAMED_STATUS, read_wrapped_status
from om_proxy.wire.apis.registry import get_api
from om_proxy.wire.upstream import AiohttpTransport, Upstream

CALL_TIMEOUT_S = 60.0
MAX_SHOWN_CHARS = 600  # of an answer
NEEDS_MODEL_MESSAGE = (
    "the observer call needs a model: memory.model depends on the model that clients use, so name one, as in "
    "doctor --call --model gpt-5.4-mini"
)
SAMPLE_MESSAGES = (
    ("user", "We drive to Lisbon on May 3. The blue van may carry 75 kg on its roof."),
    ("assistant", "Noted: Lisbon on May 3, at most 75 kg on the roof of the blue van."),
)
CALL_ADDITION_NAMES = {
    Addition.PICTURES: "pictures",
    Addition.OPTIONS: "model_settings.reasoning_effort",
    Addition.LIMIT_NAME: "the usual name of the output limit",
    Addition.LIMIT: "the output limit",
    Addition.TEMPERATURE: "the temperature",
    Addition.UNSTREAMED: "an answer in one piece (it streams)",
    Addition.SYSTEM: "the system message (its text begins the user's)",
}
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@dataclass
class SingleCalls:
    """Models that are asked once each. They repeat their answer or failure for every further
    call."""

    llm: LLM
    outcomes: dict[Target, Answer | ModelError] = field(default_factory=dict)
    answering: Target | None = None  # the last that answered

    async def complete(self, target: Target, prompt: Prompt) -> Answer:
        outcome = self.outcomes.get(target)
        if outcome is None:
            try:
                outcome = await self.llm.complete(target, prompt)
            except ModelError as exc:
                outcome = exc
            self.outcomes[target] = outcome
        if isinstance(outcome, ModelError):
            raise outcome
        self.answering = target
        return outcome


async def try_observer(
    settings: Settings, effective: Effective, actor: str | None
) -> list[Finding]:
    """Ask the observer's models for notes of two messages, in their order. Return the answer as a
    finding, usable or not, and a finding of each model that failed before it."""
    if actor is None and choose_model(effective.observer_model, 0) in ("auto", "inherit"):
        return [Finding(False, NEEDS_MODEL_MESSAGE)]
    transport, litellm = AiohttpTransport(), LiteLLM()
    direct = Direct(transport)
    calls = SingleCalls(Routed(direct, litellm))
    bill = CallBill()
    start = time.monotonic()
    notes: Observed | None = None
    try:
        targets = _choose_targets(settings, effective, actor)
        async with asyncio.timeout(CALL_TIMEOUT_S):
            notes = await _observe_sample(calls, targets, effective, bill)
    except TimeoutError:
        text = f"the observer call got no answer within {CALL_TIMEOUT_S:.0f} s"
        return [*_describe_failures(calls, has_notes=False), Finding(False, text)]
    except Unusable as exc:
        answer = calls.outcomes.get(calls.answering) if calls.answering else None
        returned = _clean_for_terminal(answer.text if isinstance(answer, Answer) else "")
        text = f"the observer call: {exc}; it returned:\n{returned}"
        return [*_describe_failures(calls, has_notes=False), Finding(False, text)]
    except ModelError as exc:
        failures = [*_describe_failures(calls, has_notes=False)]
        return failures or [Finding(False, f"the observer call failed: {exc}")]
    finally:
        await transport.aclose()
        litellm.close()
    duration_s = time.monotonic() - start
    usage = bill.usage
    cost = f"{usage.input_tokens} tokens in, {usage.output_tokens} out, {duration_s:.1f} s"
    model, text = _clean_for_terminal(notes.model), _clean_for_terminal(notes.text)
    asked = calls.answering
    works = (
        describe_left_out(direct.list_left_out(asked)) if asked and asked.via == "direct" else ""
    )
    made = Finding(True, f"the observer call to {model} returned notes ({cost}). {works}\n{text}")
    return [*_describe_failures(calls, has_notes=True), made]


def _describe_failures(calls: SingleCalls, *, has_notes: bool) -> Iterator[Finding]:
    """Say what became of the models that were asked beside the last one that answered. `has_notes`:
    whether that one made notes. A guessed model may then be missing."""
    for target, outcome in calls.outcomes.items():
        model = _clean_for_terminal(target.model)
        if isinstance(outcome, Answer):
            if target != calls.answering:
                yield Finding(False, f"the observer call to {model} returned no usable notes")
            continue
        is_missing = target.is_guess and outcome.server_status in UNKNOWN_MODEL_STATUSES
        if has_notes and is_missing:
            text = f"the guess of {model} failed ({outcome}), and the next was asked"
            yield Finding(True, text)
            continue
        is_busy = isinstance(outcome, ModelBusy)
        advice = ": try again later, or see whether the server is up" if is_busy else ""
        yield Finding(False, f"the observer call to {model} failed: {outcome}{advice}")


def describe_left_out(left_out: Addition) -> str:
    """Say in a sentence what works with the server, and what a memory call has to leave out."""
    names = [name for addition, name in CALL_ADDITION_NAMES.items() if addition in left_out]
    if not names:
        return "This server takes all that this call had."
    return f"This server takes memory calls, but not all of it; left out: {', '.join(names)}."


def _choose_targets(
    settings: Settings, effective: Effective, actor: str | None
) -> tuple[Target, ...]:
    """Choose the models to ask, in order."""
    memory = effective.memory
    inherited = build_inherited_target(settings, actor)
    return choose_targets(
        effective.observer_model,
        inherited=inherited,
        api_base=memory.api_base,
        api_key=memory.api_key.get_secret_value() if memory.api_key else None,
        input_tokens=0,
        default_model=choose_default_model(),
        small_model=find_small_model(inherited.model, inherited.base_url) if inherited else None,
        environ=os.environ,
    )


def build_inherited_target(settings: Settings, actor: str | None) -> Target | None:
    """Return the target that a request for this model would have, by the first API that has a server
    for it. Its key is the upstream's, or that of the provider's variable."""
    upstream = settings.find_server(actor)
    if actor is None or upstream is None:
        return None
    api = next(name for name in settings.identity.apis if name in upstream.apis)
    header = upstream.build_key_header(api)
    provider = "anthropic" if api == "messages" else "openai"
    if header is None and (key := find_key(f"{provider}/{actor}", upstream.base_url, os.environ)):
        header = ("x-api-key", key) if api == "messages" else ("authorization", f"Bearer {key}")
    if header is None or is_subscription_key(header[1]):
        return Target(actor, "direct", upstream.base_url, api=api)
    return Target(actor, "direct", upstream.base_url, headers=(header,), api=api)


async def _observe_sample(
    llm: LLM, targets: Sequence[Target], effective: Effective, bill: CallBill
) -> Observed:
    observer = Observer(
        llm, tokens=TokenCounter().tokens, sleep=_skip_sleep, abilities=find_abilities
    )
    messages = tuple(
        _create_message(seq, role, text) for seq, (role, text) in enumerate(SAMPLE_MESSAGES, 1)
    )
    observation = effective.memory.observation
    task = ObserverTask(
        messages=messages, instruction=observation.instruction, variant=observation.prompt
    )
    return await observer.observe(task, targets, observation.model_settings, bill)


async def _skip_sleep(_: float) -> None:
    """Replace asyncio.sleep: a retry only repeats the outcome of a call."""


def _create_message(seq: int, role: str, text: str) -> Message:
    raw = b'{"role":"%s","content":"%s"}' % (role.encode(), text.encode())
    return Message(seq, Item(raw, role, EMPTY_CHAIN), EMPTY_CHAIN, len(text) // 4, time.time())


def _clean_for_terminal(text: str) -> str:
    """Remove control characters and credentials from a model's text, and cut the text to
    MAX_SHOWN_CHARS."""
    clean_text = redact_credentials(_UNPRINTABLE.sub("", text))
    if len(clean_text) <= MAX_SHOWN_CHARS:
        return clean_text
    return f"{clean_text[:MAX_SHOWN_CHARS]}…"


QUESTION = "Which city do I drive to? Answer with one word."
SAMPLE_NOTES = "Notes of an earlier part of this conversation: the user drives to Lisbon on May 3."
PROMPT_ADDITION_NAMES = {
    Addition.SYSTEM: "a system message of their own (they begin the user's)",
    Addition.TOOL: "the tool for look-ups",
}


async def try_prompt(upstream: UpstreamSettings, target: Target, layout: Layout) -> Finding:
    """Send a question with notes before it and with the look-up tool. Say what the server took.
    Nothing of it is stored."""
    question = {"role": "user", "content": QUESTION}
    api = get_api(target.api)
    body = api.write_question({"model": target.model, "messages": [question]})
    request = api.parse_request(orjson.dumps(body))
    additions = Addition(0) if api.recall is None else Addition.TOOL
    if adds_system_message(layout, has_instructions=False):
        additions |= Addition.SYSTEM
    trial = Trial(Lessons(), additions, time.monotonic)
    client = Upstream(connections=1)
    try:
        while True:
            chosen = (
                layout
                if trial.sent & Addition.SYSTEM
                else layout_without_system(has_instructions=False)
            )
            prompt = _write_prompt(request, chosen, has_tool=bool(trial.sent & Addition.TOOL))
            status, is_readable = await _post(client, upstream, target, prompt)
            if status < 300 and not is_readable:
                text = f"a chat with {target.model} that has notes gets no reply that can be read"
                return Finding(False, text)
            if status < 300:
                return Finding(True, describe_taken(target, additions & ~trial.sent))
            if not trial.take_back(status):
                text = f"a chat with {target.model} that has notes is refused ({status})"
                return Finding(False, text)
    except (UpstreamError, Overloaded) as exc:
        return Finding(False, f"a chat with {target.model} that has notes: {exc}")
    finally:
        await client.aclose()


def describe_taken(target: Target, left_out: Addition) -> str:
    """Say in a sentence what a chat with this model takes of what memory adds."""
    names = [name for addition, name in PROMPT_ADDITION_NAMES.items() if addition in left_out]
    if not names:
        tool = ", and the tool for look-ups" if get_api(target.api).recall else ""
        return f"a chat with {target.model} takes notes{tool}"
    return f"a chat with {target.model} takes notes; left out: {', '.join(names)}"


def _write_prompt(request: Request, layout: Layout, *, has_tool: bool) -> bytes:
    tail = [Piece(raw, "user", (), None, None, 0, i) for i, raw in enumerate(request.messages)]
    body = request.api.rewrite_body(request, SAMPLE_NOTES, "", tail, layout)
    return (
        require_recall(request).offer_tool(request, body, TOOL_NAMES[0], has_threads=False)
        if has_tool
        else body
    )


async def _post(
    client: Upstream, upstream: UpstreamSettings, target: Target, body: bytes
) -> tuple[int, bool]:
    """Return the status of the answer, and whether it holds a reply. Of an error inside a 200 it is
    the error's own status, or 400 if that names none."""
    headers = [(name.encode(), value.encode()) for name, value in build_headers(target)]
    answer = await client.send(
        "POST",
        f"{upstream.base_url}{QUESTION_PATHS[target.api]}",
        headers,
        body,
        connect_timeout_s=upstream.connect_timeout,
        read_timeout_s=min(upstream.read_timeout, CALL_TIMEOUT_S),
        path_in_settings=upstream.path_in_settings,
    )
    try:
        if answer.status >= 300:
            return answer.status, False
        text = await answer.read()
    finally:
        await answer.aclose()
    reader = get_api(target.api).create_reply_reader(text.lstrip().startswith(EVENT_STARTS))
    reader.feed(text)
    reply = reader.finish()
    if reply.error:
        return read_wrapped_status(text) or UNNAMED_STATUS, False
    return answer.status, reply.message is not None
