"""Every kind of client before every kind of server, with look-ups and condensed notes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from om_proxy.wire.apis.additions import MAX_REFUSED_ROUNDS
from tests.e2e.providers.conversations import STYLES
from tests.e2e.providers.matrix import (
    DEFAULTS,
    PAGE,
    Cell,
    cut_out_matrix,
    list_conversations,
    render_matrix,
    run_matrix,
)
from tests.e2e.providers.servers import SERVERS, Server


async def test_every_client_before_every_server(tmp_path: Path) -> None:
    """No call fails that would not fail without the proxy, every prompt has the whole conversation,
    raw or noted, and every reply arrives as it was said. The notes are applied, and condensed; where
    the server takes tools, the model looks something up. One test, because it is one run; the page
    shows what came of it (`python -m tests.e2e.providers` writes it anew)."""
    cells = await run_matrix(tmp_path, list_conversations())
    assert list_faults(cells, Server.can_look_up) == {}
    assert cut_out_matrix(PAGE.read_text(encoding="utf-8")) == render_matrix(cells)


async def test_every_server_with_the_defaults(tmp_path: Path) -> None:
    """The same holds with the default memory model and look-ups, for one client of each server.
    Look-ups are offered where the client sends tools: no price list knows these models."""
    kinds = len(STYLES) * 2
    conversations = [
        each for i, each in enumerate(list_conversations()) if i % kinds == i // kinds % kinds
    ]
    cells = await run_matrix(tmp_path, conversations, DEFAULTS)
    assert len(cells) == len(SERVERS)
    assert list_faults(cells, lambda server: server.has_tools) == {}
    assert {cell.reasons for cell in cells.values()} == {("applied",)}


def list_faults(cells: dict[str, Cell], looks_up: Callable[[Server], bool]) -> dict[str, list[str]]:
    wrong = {name: [*_find_faults(cell, looks_up(cell.server))] for name, cell in cells.items()}
    return {name: faults for name, faults in wrong.items() if faults}


def _find_faults(cell: Cell, looks_up: bool) -> Iterator[str]:
    yield from cell.faults
    if not cell.has_notes:
        yield "no notes were made"
    if not cell.has_condensed:
        yield "no notes were condensed"
    if "applied" not in cell.reasons:
        yield f"notes were not applied: {cell.reasons}"
    if cell.has_looked_up is not looks_up:
        yield "nothing was looked up" if not cell.has_looked_up else "the tool was accepted"
    if not cell.has_looked_up and cell.refused_rounds > MAX_REFUSED_ROUNDS:
        yield f"{cell.refused_rounds} look-ups were refused, as if nothing had been learnt"


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.name)
def test_every_rule_has_a_source(server: Server) -> None:
    """A rule that nobody has met is no rule."""
    assert all(rule.source.startswith("https://") for rule in server.rules)
