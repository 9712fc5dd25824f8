"""Account for the calls that requests make, once each, whatever becomes of their turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from om_proxy.agents.models import TokenCounter
from om_proxy.engine.policy import find_token_prices
from om_proxy.engine.turns.prompt_builder import ShadowPrompt
from om_proxy.engine.turns.turn import PreparedTurn
from om_proxy.memory.ledger import (
    EMPTY_LEDGER,
    UNTIMED,
    Account,
    MemoryCosts,
    ThreadLedger,
    TurnEntry,
    TurnPrompt,
    TurnService,
    add_memory_calls,
    add_turn,
    assess_memory_call,
    assess_turn,
    assess_unmarked_call,
    join_ledgers,
    keep_shadow,
)
from om_proxy.memory.lifecycle.economy import has_moved
from om_proxy.memory.message_list import MessageList
from om_proxy.memory.model import Key
from om_proxy.memory.prompt.prompt_cost import BYTES_PER_TOKEN
from om_proxy.memory.token_prices import Tokens, Usage
from om_proxy.observability.facts import Facts, TurnPriced
from om_proxy.wire.apis.api import Reply, require_recall


class AccountedTurn(Struct, frozen=True):
    """The entry of a turn in the ledger of its thread."""

    entry: TurnEntry | None = None  # None: nothing was paid, or nothing is known of it
    reply_tokens: int | None = None  # by our count; None: the reply was not counted


NOTHING_ACCOUNTED = AccountedTurn()


@dataclass(frozen=True, slots=True, eq=False)
class Accountant:
    """The only place that accounts for requests. Run it as an extra of its turn."""

    token_counter: TokenCounter
    facts: Facts
    _tool_tokens: dict[tuple[str, bool], int] = field(default_factory=dict, init=False, repr=False)

    async def account(
        self,
        turn: PreparedTurn,
        reply: Reply | None,
        shadow: ShadowPrompt | None = None,
        later_rounds: Sequence[Usage | None] = (),
        tool: str | None = None,
        service: TurnService = UNTIMED,
    ) -> AccountedTurn:
        """Account for the turn. `reply`: as far as it came; its usage is the first round's.
        `shadow`: the prompt that was built beside it, if it is ready. `later_rounds`: the usage of
        the rounds that look-ups added. `tool`: the name of the tool that was offered for them."""
        if reply is None or (reply.error and reply.usage is None):
            return NOTHING_ACCOUNTED
        reply_tokens = await self._count_tokens(turn, reply) if reply.usage is None else None
        entry = self._enter(turn, reply, reply_tokens or 0, shadow, later_rounds, tool, service)
        return AccountedTurn(entry, reply_tokens)

    def account_repeated(
        self, turn: PreparedTurn, reply: Reply, service: TurnService = UNTIMED
    ) -> TurnEntry | None:
        """Account for a retry that got the stored reply, the newest message of its thread."""
        stored = turn.opened.reconciled.memory.tail[-1]
        return self._enter(turn, reply, stored.tokens, service=service)

    def account_passed(
        self,
        key: Key,
        model: str | None,
        body_bytes: int,
        reply: Reply,
        service: TurnService = UNTIMED,
    ) -> None:
        """Account for a request of a thread that went upstream without memory."""
        if reply.error and reply.usage is None:
            return
        if reply.usage is not None:
            tokens = Tokens.of(reply.usage)
        else:  # the messages are not counted: this is a guess
            reply_bytes = len(reply.message or b"")
            tokens = Tokens(
                input=body_bytes // BYTES_PER_TOKEN, output=reply_bytes // BYTES_PER_TOKEN
            )
        account = assess_unmarked_call(
            tokens, find_token_prices(model or ""), is_estimated=reply.usage is None
        )
        self.facts.emit(TurnPriced(key, model, "full", service.enter(account)))

    def account_shadow(
        self, turn: PreparedTurn, reply: Reply, accounted: AccountedTurn, shadow: ShadowPrompt
    ) -> TurnEntry | None:
        """Account for a prompt that was built too late for its turn."""
        entry = self._assess(turn, reply, accounted.reply_tokens or 0, shadow)
        if entry is None:
            return None
        account = keep_shadow(entry.account)
        self.facts.emit(
            TurnPriced(turn.opened.key, turn.opened.request.model, entry.history, account)
        )
        return TurnEntry(account, entry.history, shadow_mark=shadow.mark, shadow_parts=shadow.parts)

    def _enter(
        self,
        turn: PreparedTurn,
        reply: Reply,
        reply_tokens: int,
        shadow: ShadowPrompt | None = None,
        later_rounds: Sequence[Usage | None] = (),
        tool: str | None = None,
        service: TurnService = UNTIMED,
    ) -> TurnEntry | None:
        last_usage = later_rounds[-1] if later_rounds else None
        entry = self._assess(turn, reply, reply_tokens, shadow, tool, last_usage)
        if entry is not None:
            opened = turn.opened
            account = service.enter(entry.account)
            if later_rounds:
                account = _add_rounds(account, opened.request.model, later_rounds)
            entry = replace(entry, account=account)
            self.facts.emit(TurnPriced(opened.key, opened.request.model, entry.history, account))
        return entry

    def _assess(
        self,
        turn: PreparedTurn,
        reply: Reply,
        reply_tokens: int,
        shadow: ShadowPrompt | None,
        tool: str | None = None,
        last_usage: Usage | None = None,
    ) -> TurnEntry | None:
        """`last_usage`: of the round that wrote the answer; None: of no later round."""
        opened, mark = turn.opened, turn.mark
        if mark is None:
            return None
        reconciled = opened.reconciled
        memory, verdict, model = reconciled.memory, reconciled.verdict, opened.request.model
        tail, kept_tokens = reconciled.projected.tail, None
        # the projected tail of a retry ends at the cut: its client took nothing back
        if verdict.cut_seq is not None and tail and tail[-1].seq > verdict.cut_seq:
            tail = MessageList.of(tail)
            after_cut = tail.framed_tokens - tail.framed_tokens_between(0, verdict.cut_seq)
            kept_tokens = max(mark.whole - after_cut, 0)
        entry = assess_turn(
            memory.ledger,
            TurnPrompt(
                mark,
                kept_tokens,
                not has_moved(memory.model, model),
                opened.context.effective.limits.cache_lifetime_s,
                shadow.mark if shadow else None,
                self._count_tool(turn, tool) if tool else 0,
            ),
            Tokens.of(reply.usage) if reply.usage is not None else None,
            reply_tokens,
            find_token_prices(model or ""),
            reconciled.projected.history,
            answer_output=last_usage.output_tokens if last_usage is not None else None,
        )
        return replace(entry, shadow_parts=shadow.parts) if shadow else entry

    def _count_tool(self, turn: PreparedTurn, name: str) -> int:
        """Count the tool for look-ups. There are two of a name, and no tool changes."""
        has_threads = turn.opened.look_up_scope == "resource"
        counted = self._tool_tokens.get((name, has_threads))
        if counted is None:
            api = require_recall(turn.opened.request)
            tool = api.write_tool(name, has_threads=has_threads)
            counted = self._tool_tokens[name, has_threads] = self.token_counter.tokens(
                tool.decode()
            )
        return counted

    async def _count_tokens(self, turn: PreparedTurn, reply: Reply) -> int:
        if reply.message is None:
            return 0
        request = turn.opened.request
        counts = await self.token_counter.count(
            {0: reply.message}, request.model or "", request.api.name
        )
        return counts[0]


def _add_rounds(
    account: Account, model: str | None, later_rounds: Sequence[Usage | None]
) -> Account:
    """Return the account with the rounds that look-ups added. Without memory there would be none,
    so they have no baseline. A round without usage adds nothing."""
    prices = find_token_prices(model or "")
    for usage in later_rounds:
        if usage is not None:
            account = account.add(assess_memory_call(Tokens.of(usage), prices))
    return account


# Keep what turns that store nothing add to their threads' ledgers, until another turn of the thread
# is stored.
#
# A retry that got the stored reply was paid for, but a commit of its own would delay its reply. So
# would one of what a look-up's query cost, which the same turn stores a moment later. A process that
# ends takes these sums with it; the sums by day have them (observability/ledger_writer.py).


MAX_THREADS = 10_000


class UnstoredEntries:
    """The sums of turns that stored nothing, by thread."""

    def __init__(self) -> None:
        self._ledgers: dict[Key, ThreadLedger] = {}

    def add(self, key: Key, entry: TurnEntry) -> None:
        """Add what a turn costs. Of more threads than may wait, the oldest gives way."""
        self._put(key, add_turn(self._ledgers.get(key, EMPTY_LEDGER), entry))

    def add_memory_calls(self, key: Key, costs: MemoryCosts) -> None:
        """Add what calls of memory's models cost, likewise."""
        self._put(key, add_memory_calls(self._ledgers.get(key, EMPTY_LEDGER), costs))

    def _put(self, key: Key, ledger: ThreadLedger) -> None:
        self._ledgers[key] = ledger
        if len(self._ledgers) > MAX_THREADS:
            del self._ledgers[next(iter(self._ledgers))]

    def take(self, key: Key) -> ThreadLedger | None:
        return self._ledgers.pop(key, None)

    def put_back(self, key: Key, ledger: ThreadLedger) -> None:
        """Keep sums again that were taken, because their commit failed."""
        later = self._ledgers.get(key)
        self._ledgers[key] = join_ledgers(ledger, later) if later else ledger

    def drop(self, key: Key) -> None:
        self._ledgers.pop(key, None)
