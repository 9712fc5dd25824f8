"""The table of what people can start, and its copy in the docs."""

from __future__ import annotations

from pathlib import Path

import pytest

from om_proxy.wire.server.capacity.work_queues import EVENT_STREAM, EXPORT, WORK_KINDS, WorkKind

PAGE = Path(__file__).parents[4] / "docs" / "guides" / "capacity.md"


def write_row(kind: WorkKind) -> str:
    held = f"{kind.held_bytes / 2**20:g} MiB" if kind.held_bytes else "its body"
    cells = (
        kind.name,
        kind.covers,
        f"{kind.at_once - 1} + 1",
        str(kind.of_tenant),
        str(kind.waiting),
        held,
    )
    return f"| {' | '.join(cells)} |"


@pytest.mark.parametrize("kind", WORK_KINDS, ids=lambda kind: kind.name)
def test_the_page_has_the_table(kind: WorkKind) -> None:
    assert write_row(kind) in PAGE.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("kind", WORK_KINDS, ids=lambda kind: kind.name)
def test_one_tenant_leaves_a_slot_for_another(kind: WorkKind) -> None:
    assert 0 < kind.of_tenant < kind.at_once - 1


@pytest.mark.parametrize("kind", [EXPORT, EVENT_STREAM], ids=lambda kind: kind.name)
def test_two_tenants_leave_a_slot_of_what_a_reader_holds(kind: WorkKind) -> None:
    """A client that does not read keeps its slot."""
    assert 2 * kind.of_tenant < kind.at_once - 1


def test_all_slots_together_fit_into_the_shipped_memory() -> None:
    assert sum(kind.at_once * kind.held_bytes for kind in WORK_KINDS) < 512 * 2**20
