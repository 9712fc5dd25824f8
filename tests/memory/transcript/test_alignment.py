"""Laying what was sent beside what is stored: as the rule is told, and for little."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from om_proxy.memory.model import EMPTY_CHAIN, Item, Mark
from om_proxy.memory.transcript.alignment import MAX_ALIGNED_CELLS, align
from om_proxy.memory.transcript.matching import Pair, TextCounts
from tests.memory.aligning import Table
from tests.memory.building import item
from tests.support.counting import TIMES, count_lines_run

ROLES = ("user", "assistant", "tool", "system")
IDS = st.lists(st.sampled_from("vw"), max_size=2)
MESSAGES = st.one_of(
    st.builds(item, st.sampled_from(ROLES[:2]), st.sampled_from("abcdefgh")),
    st.builds(
        item,
        st.sampled_from(ROLES),
        st.sampled_from("ab"),
        IDS,
        st.sampled_from([None, None, "v", "w"]),
    ),
)
HISTORIES = st.lists(MESSAGES, max_size=14)


def marks(items: Sequence[Item]) -> tuple[Mark, ...]:
    return tuple(
        Mark(seq, i.fp, EMPTY_CHAIN, i.role, i.calls, i.answers, 1)
        for seq, i in enumerate(items, 1)
    )


@st.composite
def altered(draw: st.DrawFn, stored: Sequence[Item]) -> list[Item]:
    """Alter the messages as clients do: leave some out, change some, put some in."""
    sent: list[Item] = []
    for i, one in enumerate(stored):
        match draw(st.integers(0, 9)):
            case 0 | 1:
                pass
            case 2:
                sent.append(item(one.role, f"changed {i}", one.calls, one.answers))
            case 3:
                sent += [draw(MESSAGES), one]
            case _:
                sent.append(one)
    return sent


@settings(max_examples=400)
@given(
    st.data(),
    HISTORIES,
    HISTORIES,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_it_is_aligned_as_the_rule_is_told(
    data: st.DataObject,
    stored: list[Item],
    superseded: list[Item],
    own: bool,
    joined: bool,
    origin: bool,
    closed: bool,
    window: bool,
) -> None:
    """The fast table agrees with the slow rule on any two lists, and picks the same of equals."""
    sent = data.draw(altered(stored) if own else HISTORIES)
    counts = TextCounts.of(marks(stored), marks(superseded))
    told = Table(sent, marks(stored), counts, joined, origin, closed, window).pairs()
    assert (
        align(
            sent, marks(stored), counts, joined=joined, origin=origin, closed=closed, window=window
        )
        == told
    )


def test_above_so_many_nothing_is_aligned() -> None:
    """It says so, rather than holding everybody up."""
    ours = [item("user", str(i)) for i in range(401)]
    few = ours[:400]
    assert align(ours, marks(few), TextCounts.of(marks(few)), joined=False, origin=True) is None
    assert len(few) ** 2 == MAX_ALIGNED_CELLS


def work(sent: Sequence[Item], stored: Sequence[Item]) -> partial[list[Pair] | None]:
    ours = marks(stored)
    return partial(align, sent, ours, TextCounts.of(ours), joined=True, origin=True)


def test_ids_are_not_compared_at_every_place() -> None:
    """Looked up, that is: a message may make a thousand calls, equal to those of all others but for
    the last."""
    compared = 0

    class Ids(tuple[str, ...]):
        __hash__ = tuple.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return super().__eq__(other)

    def calling(side: str) -> list[Item]:
        made = [item("assistant", f"{side} {i}") for i in range(60)]
        return [replace(one, calls=Ids(("same", f"{side} {i}"))) for i, one in enumerate(made)]

    work(calling("a"), calling("b"))()
    assert compared <= 4 * 60


def test_a_row_takes_few_steps() -> None:
    """Replies that all may have changed, behind what matches: the worst that an unproven stretch
    can be."""

    def changed(count: int) -> partial[list[Pair] | None]:
        return work(*([item("assistant", f"{side} {i}") for i in range(count)] for side in "ab"))

    assert count_lines_run(changed(20 * TIMES)) <= 1.5 * TIMES**2 / 2 * count_lines_run(changed(20))
