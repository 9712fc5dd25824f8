"""How long the ledger and the figures take of a turn, each alone, in µs of CPU.

The parts are those that a server runs, on turns that an engine has opened. Each part is measured in
rounds, and the least is printed: neighbours of the machine only add.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import orjson

from om_proxy.agents.models import TokenCounter
from om_proxy.engine.turns.accounting import Accountant, UnstoredEntries
from om_proxy.engine.turns.block_renderer import BlockRenderer
from om_proxy.engine.turns.engine import Engine
from om_proxy.engine.turns.turn import PreparedTurn
from om_proxy.memory.ledger import add_turn
from om_proxy.memory.transcript.reconcile import Hints
from om_proxy.observability.facts import Facts, TurnEnded
from om_proxy.observability.figures.figures import Figures
from om_proxy.observability.ledger_writer import LedgerWriter
from om_proxy.settings.config import WatchedSettings, parse
from om_proxy.settings.identity.callers import Caller
from om_proxy.storage.base import Store
from om_proxy.wire.apis.api import Reply
from om_proxy.wire.apis.registry import CHAT, read_usage
from tests.memory.building import KEY
from tests.support.performing import open_parts

TIMED_MODEL = "gpt-4o"
LONG_TEXT = "the van, the dock and the seven crates of apples are at Quarry Steps today. " * 10
ANSWER = {"role": "assistant", "content": LONG_TEXT}
REPORTED = {"prompt_tokens": 1_200, "completion_tokens": 20, "total_tokens": 1_220}
REPLY = Reply(orjson.dumps(ANSWER), complete=True, finish_reason="stop", usage=read_usage(REPORTED))
# before the turn that is measured; after six there are notes
TURNS_BEFORE = {"raw": 1, "applied": 6}
ROUNDS, TURNS_OF_A_ROUND = 7, 2_000
MICROSECONDS_A_SECOND = 1_000_000


class Turns(NamedTuple):
    """A turn, and a retry of it that gets the stored reply."""

    first: PreparedTurn
    retry: PreparedTurn


@dataclass(frozen=True, slots=True)
class Part:
    """Work of one turn. `run` does it so many times."""

    name: str
    run: Callable[[int], None]


async def open_turns(turns_before: int) -> Turns:
    """Let a client send its whole history until so many turns are stored; then open the next one
    and its retry."""
    async with open_parts() as parts:
        engine = Engine(
            parts.memories,
            parts.background,
            BlockRenderer(),
            TokenCounter(),
            b"s" * 32,
            clock=parts.clock,
        )
        messages: list[dict[str, str]] = []

        async def open_turn() -> PreparedTurn:
            request = CHAT.parse_request(orjson.dumps({"model": TIMED_MODEL, "messages": messages}))
            caller = Caller(KEY, KEY.tenant, "on")
            return await engine.open_turn(caller, request, parts.context(TIMED_MODEL), Hints())

        for number in range(turns_before + 1):
            messages.append({"role": "user", "content": f"question {number}: {LONG_TEXT}"})
            turn = await open_turn()
            accounted = await engine.accountant.account(turn, REPLY)
            await engine.close_turn(turn, REPLY, accounted)
            await parts.background.wait_idle()
            retry = await open_turn()
            messages.append(ANSWER)
        assert engine.close_repeated(retry, REPLY)
        return Turns(turn, retry)


def list_ledger_parts(name: str, turns: Turns) -> list[Part]:
    """Return the work of the ledger: for a turn that is stored, and for a retry that is not."""
    writer = LedgerWriter(cast(Store, None))  # nothing is written meanwhile
    facts = Facts()
    writer.subscribe_to(facts)
    accountant = Accountant(TokenCounter(), facts)
    unstored = UnstoredEntries()
    ledger = turns.first.opened.reconciled.memory.ledger

    async def account_turns(count: int) -> None:
        for _ in range(count):
            accounted = await accountant.account(turns.first, REPLY)
            assert accounted.entry is not None
            add_turn(ledger, accounted.entry)

    def account_retries(count: int) -> None:
        for _ in range(count):
            entry = accountant.account_repeated(turns.retry, REPLY)
            assert entry is not None
            unstored.add(KEY, entry)

    return [
        Part(f"ledger: a turn, {name}", lambda count: asyncio.run(account_turns(count))),
        Part(f"ledger: a retry, {name}", account_retries),
    ]


def list_figure_parts(turn: PreparedTurn) -> list[Part]:
    """Return the work of the figures: the facts of a turn, and a call of the store."""
    figures = Figures(WatchedSettings(parse("")))
    told: list[Any] = []
    Accountant(TokenCounter(), Facts(told.append)).account_repeated(turn, REPLY)
    ended = TurnEnded(
        key=KEY,
        status=200,
        memory=turn.status,
        reason=turn.reason,
        model=TIMED_MODEL,
        tokens_received=turn.receipt["tokens-received"],
        tokens_sent=turn.receipt["tokens-sent"],
        case=turn.opened.case,
        end="complete",
        overhead_ms=0.4,
        total_ms=1.2,
        upstream="fake",
        first_byte_s=0.001,
        usage=REPLY.usage,
    )
    facts = Facts()
    figures.count_facts(facts, str)

    def count_turns(count: int) -> None:
        for _ in range(count):
            facts.emit(told[0])
            facts.emit(ended)

    class AnsweringStore:
        async def version(self, _key: object) -> int:
            return 1

    plain = cast(Store, AnsweringStore())
    measured = figures.measure(plain, lambda: facts)
    return [
        Part("figures: the facts of a turn", count_turns),
        Part("figures: a call of the store", lambda count: asyncio.run(ask(measured, count))),
        Part("… the same call unmeasured", lambda count: asyncio.run(ask(plain, count))),
    ]


async def ask(store: Store, count: int) -> None:
    for _ in range(count):
        await store.version(KEY)


def read_usages(count: int) -> None:
    for _ in range(count):
        read_usage(REPORTED)


def list_parts() -> list[Part]:
    parts = [Part("ledger: the usage of a reply", read_usages)]
    for name, turns_before in TURNS_BEFORE.items():
        turns = asyncio.run(open_turns(turns_before))
        parts += list_ledger_parts(name, turns)
    return parts + list_figure_parts(turns.retry)


def measure(part: Part, rounds: int, count: int) -> float:
    """Return µs of CPU for a turn, of the quickest round."""
    part.run(count // 10)
    seconds = []
    for _ in range(rounds):
        started = time.process_time()
        part.run(count)
        seconds.append(time.process_time() - started)
    return min(seconds) / count * MICROSECONDS_A_SECOND


def main() -> None:
    options = argparse.ArgumentParser(
        prog="scripts/bench parts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("--rounds", type=int, default=ROUNDS)
    options.add_argument("--turns", type=int, default=TURNS_OF_A_ROUND, help="of a round")
    options.add_argument("--only", default="", help="parts whose name contains this")
    chosen = options.parse_args()
    for part in list_parts():
        if chosen.only in part.name:
            print(
                f"{part.name:32} {measure(part, chosen.rounds, chosen.turns):7.2f} µs", flush=True
            )


if __name__ == "__main__":
    main()
