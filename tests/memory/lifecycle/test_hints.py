"""The current task and the suggested response, as the actor reads them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from om_proxy.memory.lifecycle import transitions
from om_proxy.memory.lifecycle.hints import ActiveHints, active_hints, reaches_newest
from om_proxy.memory.model import EMPTY_CHAIN, Memory, Observation, replace_log
from tests.memory.building import chat, chunk, memory, reflection, transcript, with_log


def hinted(
    *hints: tuple[str | None, str | None], roles: tuple[str, ...] = ("assistant",)
) -> Memory:
    """A log of entries with these tasks and suggestions, made at 10, 20 … s, and a tail of these
    speakers behind it."""
    of = memory(transcript(*[(role, 50) for role in roles]))
    log = tuple(
        Observation(id=n, after=0, last=0, chain=EMPTY_CHAIN, text="* a", tokens=1, source_tokens=1, at=10.0 * n, task=task, suggestion=say)
        for n, (task, say) in enumerate(hints, 1)
    )  # fmt: skip
    return replace_log(of, entries=log)


@pytest.mark.parametrize(
    ("hints", "task", "as_of"),
    [
        pytest.param((), None, 0.0, id="nothing noted"),
        pytest.param((("t1", None), ("t2", None)), "t2", 20.0, id="the newest"),
        pytest.param(
            (("t1", None), (None, None)),
            "t1",
            10.0,
            id="left out keeps the old one, as of its time",
        ),
        pytest.param((("t1", None), ("", None)), None, 20.0, id="an empty one ends it"),
        pytest.param((("t1", None), ("", None), (None, None)), None, 20.0, id="for good"),
        pytest.param(
            (("t1", None), ("", None), ("t3", None)), "t3", 30.0, id="until there is another"
        ),
    ],
)
def test_the_current_task(
    hints: tuple[tuple[str | None, str | None], ...], task: str | None, as_of: float
) -> None:
    found = active_hints(hinted(*hints))
    assert (found.task, found.as_of) == (task, as_of)


@pytest.mark.parametrize(
    ("roles", "user_speaks", "shown"),
    [
        pytest.param(("assistant", "assistant", "tool"), False, "t", id="the assistant works on"),
        pytest.param(("assistant", "assistant", "user"), False, None, id="the user has spoken"),
        pytest.param(("assistant", "assistant"), True, None, id="the user speaks in the request"),
        pytest.param(("user", "assistant"), False, "t", id="the notes know it"),
    ],
)
@pytest.mark.parametrize("tasks", [("t", None), (None, "t")], ids=["active", "buffered"])
def test_a_task_is_dropped_at_activation(
    roles: tuple[str, ...], user_speaks: bool, shown: str | None, tasks: tuple[str | None, ...]
) -> None:
    """The user may have done it, or asked for something else."""
    of = hinted((tasks[0], None), roles=roles)
    of = transitions.add_chunk(of, replace(chunk(of, 1), task=tasks[1]))
    after = transitions.activate_chunks(of, [of.chunks[0].id], 50.0, user_speaks=user_speaks)
    assert active_hints(after).task == shown


def test_without_a_task_nothing_is_dropped() -> None:
    of = hinted((None, None), roles=("assistant", "user"))
    of = transitions.add_chunk(of, chunk(of, 1))
    after = transitions.activate_chunks(of, [of.chunks[0].id], 50.0)
    assert after.log.entries[-1] == of.chunks[0]


@pytest.mark.parametrize(
    ("hints", "roles", "shown"),
    [
        pytest.param(
            ((None, "s1"),), ("assistant", "tool"), "s1", id="while the assistant works on"
        ),
        pytest.param(
            ((None, "s1"),), ("assistant", "user"), None, id="not once the user has spoken"
        ),
        pytest.param(
            ((None, "s1"), (None, None)), ("assistant",), None, id="not behind newer notes"
        ),
    ],
)
def test_a_suggestion_is_shown_until_the_user_speaks(
    hints: tuple[tuple[str | None, str | None], ...], roles: tuple[str, ...], shown: str | None
) -> None:
    """An actor was told for 94 requests to do what the user had done himself
    (docs/contributing/behaviour.md#hints)."""
    assert active_hints(hinted(*hints, roles=roles)).suggestion == shown


@given(st.lists(st.sampled_from(["user", "assistant"]), min_size=1, max_size=8), st.integers(0, 8))
def test_a_suggestion_is_never_older_than_the_user_s_newest_message(
    roles: list[str], last: int
) -> None:
    """An older suggestion is neither asked for nor shown."""
    of = hinted((None, "say"), roles=tuple(roles))
    of = replace_log(of, entries=(replace(of.log.entries[0], last=last),))
    newest = max((m.seq for m in of.tail if m.item.role == "user"), default=0)
    assert (active_hints(of).suggestion is None) is (last < newest)
    assert not reaches_newest(of, last) or last >= newest


def test_a_reflection_keeps_task_and_time_of_what_it_was_made_from() -> None:
    """A rewriting is no news of what is being worked on."""
    made = with_log(memory(chat(1, 100)), 20_000, 21_000)
    made = replace_log(
        made,
        entries=(
            replace(made.log.entries[0], task="t", at=7.0),
            replace(made.log.entries[1], at=9.0, suggestion="s"),
        ),
    )
    after = transitions.swap_reflection(
        transitions.keep_reflection(made, reflection(made, 5_000)), 99.0
    )
    assert [(o.task, o.at, o.suggestion) for o in after.log.entries] == [("t", 7.0, "s")]


def test_a_fork_takes_hints_back_with_their_entry() -> None:
    """The task of an abandoned branch is no task any more
    (docs/contributing/behaviour.md#hints)."""
    made = hinted(("t1", None), ("t2", "s2"))
    assert active_hints(replace_log(made, entries=made.log.entries[:1])) == ActiveHints(
        "t1", 10.0, None
    )
