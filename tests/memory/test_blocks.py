"""The places where a conversation may be cut, as tables and as properties of any conversation."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.memory.blocks import count_closed, find_closed_ends, find_safe_cut, first_asked_index
from om_proxy.memory.model import EMPTY_CHAIN, MESSAGE_FRAMING_TOKENS, Mark

SESSION = Path(__file__).parents[3] / "shared" / "data" / "coding-session.jsonl"


def marks(*shorthand: str, size: int = 10) -> list[Mark]:
    """`u` user, `a` assistant, `a:x,y` assistant calling x and y, `t:x` result of x, `s` system;
    each `size` in a prompt."""
    made = []
    for seq, short in enumerate(shorthand, 1):
        kind, _, ids = short.partition(":")
        role = {"u": "user", "a": "assistant", "t": "tool", "s": "system"}[kind]
        calls = tuple(ids.split(",")) if kind == "a" and ids else ()
        answers = ids if kind == "t" else None
        made.append(
            Mark(seq, b"", EMPTY_CHAIN, role, calls, answers, size - MESSAGE_FRAMING_TOKENS)
        )
    return made


@pytest.mark.parametrize(
    ("conversation", "ends"),
    [
        pytest.param("", (), id="nothing"),
        pytest.param("u a u", (0, 1, 2), id="plain messages are blocks of their own"),
        pytest.param("u a:x t:x a", (0, 2, 3), id="a call and its result are one block"),
        pytest.param("u a:x,y t:x t:y a", (0, 3, 4), id="parallel calls stay together"),
        pytest.param("u a:x,y t:y t:x", (0, 3), id="results in any order"),
        pytest.param("u a:x", (0,), id="a call without result at the end is open"),
        pytest.param("u a:x,y t:x", (0,), id="a half answered step at the end is open"),
        pytest.param("a:x t:q", (), id="a foreign result does not close it"),
        pytest.param(
            "u a:x u a",
            (0, 1, 2, 3),
            id="a call never answered closes when another message follows",
        ),
        pytest.param("u a:x,y t:x u", (0, 2, 3), id="so does a half answered step"),
        pytest.param("a:x u t:x a", (2, 3), id="a late result keeps what is between"),
        pytest.param("a:x t:x t:x a", (2, 3), id="a result twice is no orphan"),
        pytest.param("t:q u a", (0, 1, 2), id="an orphan the client sent is a message"),
        pytest.param("a:1 t:1 a:1 t:1", (1, 3), id="ids used again belong to the newest call"),
        pytest.param(
            "a:1 u a:1 t:1", (0, 1, 3), id="an unanswered id used again does not reach on"
        ),
        pytest.param("a:x a:y t:x t:y u", (3, 4), id="parallel calls in messages of their own"),
        pytest.param("u a:x a:y", (0,), id="all of them are open"),
        pytest.param("u a:x a:y t:y", (0,), id="the first of them is open"),
        pytest.param("u a:x a:y t:y a", (0, 1, 3, 4), id="and closes unanswered"),
        pytest.param("u s a:x s t:x", (0, 1, 4), id="a message between call and result is inside"),
    ],
)
def test_closed_ends(conversation: str, ends: tuple[int, ...]) -> None:
    """A cut after a closed end separates no tool call from its results."""
    assert find_closed_ends(marks(*conversation.split())) == ends


@pytest.mark.parametrize(
    ("conversation", "limit", "least", "count"),
    [
        pytest.param("", 100, 0, 0, id="nothing"),
        pytest.param("u a u a", 100, 0, 4, id="everything fits"),
        pytest.param("u a u a u", 30, 20, 2, id="the latest cut before a user message"),
        pytest.param("u a u a u", 30, 21, 3, id="any closed end, when that is too little"),
        pytest.param("u a a a a u", 30, 30, 3, id="no user message in reach"),
        pytest.param("u a:x t:x a u", 25, 20, 1, id="backwards, out of a block"),
        pytest.param("u a:x t:x a u", 30, 10, 3, id="a block that just fits"),
        pytest.param("a:x t:x a u", 15, 0, 2, id="a first block larger than the limit goes alone"),
        pytest.param("u a:x", 5, 0, 1, id="so does a first message"),
        pytest.param("a:x", 100, 0, 0, id="nothing is closed"),
        pytest.param(
            "u a:x t:x", 100, 20, 3, id="the end behind a result, for want of a user message"
        ),
        pytest.param(
            "u a u a:x t:x", 100, 20, 2, id="rather before the user message than inside the turn"
        ),
        pytest.param("u a u a:x", 100, 0, 2, id="an open block is left out"),
        pytest.param("u a u", 100, 20, 2, id="an unanswered user message stays with its answer"),
    ],
)
def test_safe_cut(conversation: str, limit: int, least: int, count: int) -> None:
    """The cut moves backwards to a user message that yields enough, else to any closed end."""
    assert find_safe_cut(marks(*conversation.split()), limit, least) == count


@pytest.mark.parametrize(
    ("conversation", "first"),
    [
        pytest.param("", 0, id="nothing"),
        pytest.param("u", 0, id="the first message"),
        pytest.param("u u", 0, id="without any reply everything is asked"),
        pytest.param("u a u", 2, id="the new message"),
        pytest.param("u a u u", 2, id="all that follows the last reply"),
        pytest.param("u a:x t:x", 1, id="results and the call they answer"),
        pytest.param("u a:x,y t:x", 1, id="an open step"),
        pytest.param("u a:x t:x a", 4, id="nothing, when the assistant is to go on"),
        pytest.param("u a:x", 1, id="an open call"),
        pytest.param("u a:x u", 2, id="a call the user went past"),
        pytest.param("u a:x a:y t:x t:y", 1, id="calls in messages of their own"),
        pytest.param("u a:x t:x a u a:y t:y", 5, id="earlier steps are not asked again"),
        pytest.param("u a:x u a t:x", 1, id="a late result"),
        pytest.param("u a:x a:y t:x a t:y", 1, id="a late result of one of two calls"),
    ],
)
def test_asked(conversation: str, first: int) -> None:
    """A prompt never covers what its own request asks."""
    assert first_asked_index(marks(*conversation.split())) == first


@st.composite
def conversations(draw: st.DrawFn) -> list[Mark]:
    ids = st.sampled_from(["x", "y", "z"])
    calls = st.lists(ids, min_size=1, max_size=2, unique=True).map(
        lambda names: f"a:{','.join(names)}"
    )
    kinds = st.one_of(st.sampled_from(["u", "a", "s"]), calls, ids.map(lambda name: f"t:{name}"))
    shorthand = draw(st.lists(kinds, max_size=14))
    sizes = draw(st.lists(st.integers(0, 50), min_size=len(shorthand), max_size=len(shorthand)))
    return [mark._replace(tokens=size) for mark, size in zip(marks(*shorthand), sizes, strict=True)]


def separated(messages: Sequence[Mark], count: int) -> bool:
    """Whether a result after the cut answers a call before it (that no later call of the same id
    took over)."""
    made: dict[str, int] = {}
    for i, message in enumerate(messages):
        if i >= count and message.answers in made and made[message.answers] < count:
            return True
        made.update(dict.fromkeys(message.calls, i))
    return False


@given(conversations())
def test_no_closed_end_separates(messages: list[Mark]) -> None:
    """No closed end of any conversation stands between a call and a result of it."""
    assert not any(separated(messages, end + 1) for end in find_closed_ends(messages))


@given(conversations(), st.integers(1, 200), st.integers(0, 100))
def test_a_safe_cut_is_a_closed_end_within_the_limit(
    messages: list[Mark], limit: int, least: int
) -> None:
    """It is 0 only if nothing is closed, and above the limit only for the first block alone."""
    count = find_safe_cut(messages, limit, least)
    ends = find_closed_ends(messages)
    if not ends:
        assert count == 0
        return
    tokens = sum(m.tokens + MESSAGE_FRAMING_TOKENS for m in messages[:count])
    assert count - 1 in ends
    assert tokens <= limit or count == ends[0] + 1


@given(conversations(), st.integers(0, 15))
def test_the_closed_part_ends_at_the_last_closed_end(messages: list[Mark], most: int) -> None:
    """Looking from the end finds what going through all messages finds."""
    ends = [end + 1 for end in find_closed_ends(messages) if end < most]
    assert count_closed(messages, most) == max(ends, default=0)


@pytest.mark.parametrize(
    "results",
    [
        pytest.param([f"t:q{n}" for n in range(500)], id="none has a call"),
        pytest.param([f"t:{n}" for n in reversed(range(100))], id="calls stand far ahead"),
        pytest.param([w for n in range(100) for w in (f"a:x{n}", f"t:x{n - 1}")], id="each call inside the last"),
    ],
)  # fmt: skip
def test_many_results_are_looked_at_a_few_times(results: list[str]) -> None:
    """A client may send thousands of them. Each looks for no call of its own."""

    class CountedList(list[Mark]):
        reads = 0

        def __getitem__(self, index: Any) -> Any:
            self.reads += 1
            return super().__getitem__(index)

    messages = CountedList(marks("u", *(f"a:{n}" for n in range(100)), *results, "u"))
    first_asked_index(messages)
    count_closed(messages, len(messages) - 1)
    assert messages.reads < 10 * len(messages)


@given(conversations())
def test_what_is_asked_starts_at_a_cut(messages: list[Mark]) -> None:
    """Covering everything before it never separates a call from a result."""
    assert not separated(messages, first_asked_index(messages))


@given(conversations(), st.sampled_from(["u", "a"]))
def test_every_block_closes_in_the_end(messages: list[Mark], follows: str) -> None:
    """A message that is no result closes whatever was waiting."""
    longer = [*messages, *marks(follows)]
    assert find_closed_ends(longer)[-1] == len(messages)


def test_the_real_session_can_be_cut() -> None:
    """Its 18 calls without a result keep nothing open: no stretch between two cuts is longer than
    its longest step."""
    if not SESSION.exists():
        pytest.skip("needs shared/data/coding-session.jsonl beside the repository")
    read = [json.loads(line) for line in SESSION.read_text().splitlines()]
    messages = [
        Mark(
            seq,
            b"",
            EMPTY_CHAIN,
            m["role"],
            tuple(call["id"] for call in m.get("tool_calls") or ()),
            m.get("tool_call_id"),
            len(m.get("content") or "") // 4,
        )
        for seq, m in enumerate(read, 1)
    ]
    ends = find_closed_ends(messages)
    stretches = [later - earlier for earlier, later in zip((-1, *ends), ends, strict=False)]
    unanswered = {c for m in messages for c in m.calls} - {m.answers for m in messages}
    assert len(unanswered) == 18
    assert max(stretches) <= 1 + max(len(m.calls) for m in messages)
    assert ends[-1] >= len(messages) - 2
