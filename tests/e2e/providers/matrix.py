"""Run every conversation through one proxy, and tell what came of each as a page shows it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import httpx

from om_proxy.app.app import App
from om_proxy.memory.prompt.context import layout_for
from om_proxy.settings.config import parse
from om_proxy.testing.loopback import serve_on_loopback
from tests.e2e.providers.conversations import STYLES, TURNS, Conversation, Style
from tests.e2e.providers.fake_server import LOOK_UP_TOOL, FakeServers, is_asked_with_results
from tests.e2e.providers.servers import SERVERS, Server

PAGE = Path(__file__).parents[3] / "docs" / "clients" / "servers.md"
BEGIN, END = "<!-- matrix: tests/e2e/providers -->\n", "<!-- /matrix -->\n"
# more are answered no sooner, and a busy machine would answer some without memory
REQUESTS_AT_ONCE = 4
LOOK_UP_WORDS = {
    frozenset({True}): "yes",
    frozenset({False}): "left out",
    frozenset({True, False}): "in some",
}
SMALL_MEMORY = (
    "observation: {message_tokens: 500, buffer_tokens: 150, block_timeout: 60s}, "
    "reflection: {observation_tokens: 400}, retrieval: {timeout: 30s%s}"
)
DEFAULTS = SMALL_MEMORY % ""  # but for its sizes and times
LOOK_UPS_FOR_ALL = "model: inherit, " + SMALL_MEMORY % ", enabled: true"


@dataclass(frozen=True)
class Cell:
    """What came of one conversation."""

    server: Server
    faults: tuple[str, ...]
    reasons: tuple[str, ...]  # what receipts said once there were notes: `applied`, or why not
    has_notes: bool
    has_looked_up: bool
    has_condensed: bool
    refused_rounds: int  # with what was looked up


def list_conversations() -> list[Conversation]:
    """List every kind of client before every kind of server."""
    return [
        Conversation(server, style, streams)
        for server in SERVERS
        for style in STYLES
        for streams in (False, True)
    ]


async def run_matrix(
    folder: Path, conversations: Sequence[Conversation], memory: str = LOOK_UPS_FOR_ALL
) -> dict[str, Cell]:
    """Return what came of each conversation, by its name. `memory`: its settings."""
    servers = {each.server.name: each.server for each in conversations}.values()
    fakes = FakeServers()
    async with serve_on_loopback(fakes, lifespan="off") as base:
        upstreams = "\n".join(_write_upstream(server, base) for server in servers)
        settings = parse(
            f"upstream:\n{upstreams}\n"
            f'storage: {{url: "sqlite:///{folder}/om.db"}}\n'
            f"memory: {{{memory}}}\n"
            'telemetry: {log: "off"}\n'
        )
        app = App(settings)
        async with (
            serve_on_loopback(app) as proxy,
            httpx.AsyncClient(base_url=proxy, trust_env=False, timeout=60) as http,
        ):
            numbers = dict.fromkeys((each.name for each in conversations), 0)
            places = asyncio.Semaphore(REQUESTS_AT_ONCE)

            async def ask(each: Conversation) -> None:
                async with places:
                    await each.ask(http, fakes, numbers[each.name])

            while asked := [each for each in conversations if numbers[each.name] < TURNS]:
                await asyncio.gather(*map(ask, asked))
                await app.background.wait_idle()
                for each in asked:
                    numbers[each.name] += not each.results_due
    return {each.name: _judge(each, fakes) for each in conversations}


def _write_upstream(server: Server, base: str) -> str:
    layout = layout_for(httpx.URL(server.address).host, "auto")
    return (
        f'  - {{name: {server.name}, match: ["{server.name}"], layout: {layout}, '
        f'base_url: "{base}/{server.name}/v1"}}'
    )


def _judge(conversation: Conversation, fakes: FakeServers) -> Cell:
    mine = [each for each in fakes.exchanges if each.conversation == conversation.name]
    accepted = [each for each in mine if each.complaint is None]
    prompts = [each for each in accepted if not each.is_memory_call]
    first = next((i for i, word in enumerate(conversation.receipts) if word != "raw"), None)
    since = conversation.receipts[first:] if first is not None else ()
    return Cell(
        conversation.server,
        faults=tuple(conversation.faults),
        reasons=tuple(sorted(set(since))),
        has_notes=any(each.is_memory_call for each in accepted),
        has_looked_up=any(
            call["function"]["name"] == LOOK_UP_TOOL
            for each in prompts
            for message in each.body["messages"]
            for call in message.get("tool_calls") or ()
        ),
        has_condensed=any(
            "# This time" in str(each.body) for each in accepted if each.is_memory_call
        ),
        refused_rounds=sum(
            each.complaint is not None and is_asked_with_results(each.body) for each in mine
        ),
    )


# ── the page ──────────────────────────────────────────────────────────────────────────────────────


def cut_out_matrix(page: str) -> str:
    """Return the part of the page that this module writes."""
    return page[page.index(BEGIN) : page.index(END) + len(END)]


def render_matrix(cells: dict[str, Cell]) -> str:
    """Render the results, and the rules."""
    return "".join((BEGIN, "\n", *_render_results(cells), "\n", *_render_rules(), "\n", END))


def _render_results(cells: dict[str, Cell]) -> Iterator[str]:
    yield "| server | newest message only | a window | whole history | look-ups |\n"
    yield "|---|---|---|---|---|\n"
    for server in SERVERS:
        found = {style: _list_cells(cells, server, style) for style in STYLES}
        receipts = " | ".join(_render_receipts(found[style]) for style in STYLES)
        looked_up = {cell.has_looked_up for both in found.values() for cell in both}
        yield f"| {server.title} | {receipts} | {LOOK_UP_WORDS[frozenset(looked_up)]} |\n"


def _list_cells(cells: dict[str, Cell], server: Server, style: Style) -> list[Cell]:
    """List the cells of one kind of client: whole replies, and streams."""
    return [cells[Conversation(server, style, streams).name] for streams in (False, True)]


def _render_receipts(both: Iterable[Cell]) -> str:
    """Render what the receipts said; faults come first, if there are any."""
    faults = sorted({fault.partition(":")[0] for cell in both for fault in cell.faults})
    words = sorted({word for cell in both for word in cell.reasons})
    return ", ".join([*faults, *(f"`{word}`" for word in words)])


def _render_rules() -> Iterator[str]:
    yield "| what is refused | by |\n"
    yield "|---|---|\n"
    rules = {(rule.words, rule.source) for server in SERVERS for rule in server.rules}
    for words, titles in groupby(sorted(rules), key=itemgetter(0)):
        yield f"| {words} | {', '.join(_link_servers(*rule) for rule in titles)} |\n"


def _link_servers(words: str, source: str) -> str:
    """Link the servers that have this rule from this source."""
    titles = [
        server.title
        for server in SERVERS
        if any((rule.words, rule.source) == (words, source) for rule in server.rules)
    ]
    return f"[{', '.join(titles)}]({source})"
