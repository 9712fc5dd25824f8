"""Every kind of client before every kind of server, with look-ups and condensed notes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.providers.matrix import PAGE, Cell, cut_out_matrix, render_matrix, run_matrix
from tests.e2e.providers.servers import ANY_TOOL, SERVERS, Server


async def test_every_client_before_every_server(tmp_path: Path) -> None:
    """No call fails that would not fail without the proxy, every prompt has the whole conversation,
    raw or noted, and every reply arrives as it was said. The notes are applied, and condensed; where
    the server takes tools, the model looks something up. One test, because it is one run; the page
    shows what came of it (`python -m tests.e2e.providers` writes it anew)."""
    cells = await run_matrix(tmp_path)
    wrong = {name: [*_list_faults(cell)] for name, cell in cells.items()}
    assert {name: faults for name, faults in wrong.items() if faults} == {}
    assert cut_out_matrix(PAGE.read_text(encoding="utf-8")) == render_matrix(cells)


def _list_faults(cell: Cell) -> Iterator[str]:
    yield from cell.faults
    if not cell.has_notes:
        yield "no notes were made"
    if not cell.has_condensed:
        yield "no notes were condensed"
    if "applied" not in cell.reasons:
        yield f"notes were not applied: {cell.reasons}"
    if cell.has_looked_up is cell.server.refuses(ANY_TOOL):
        yield "nothing was looked up" if not cell.has_looked_up else "the tool was accepted"


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.name)
def test_every_rule_has_a_source(server: Server) -> None:
    """A rule that nobody has met is no rule."""
    assert all(rule.source.startswith("https://") for rule in server.rules)
