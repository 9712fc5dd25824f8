"""Every case of reconciling through the wire, streamed and not: the word for it, what is stored,
and what went upstream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count

import pytest
import pytest_asyncio

from tests.e2e.playing import Model, Play, TurnEvents
from tests.e2e.running import Running, run_with_scripted_models

pytestmark = pytest.mark.asyncio(
    loop_scope="module"
)  # one proxy for all cases, each with a thread of its own
numbers = count(1)

LONG = "u1 a1 u2 a2 u3 a3"
TOLD = "u1 > a1; u1 a1 u2 > a2; u1 a1 u2 a2 u3 > a3"
SAME = "the client's very bytes"

CASES = [
    # before, sent, case, live after the reply aR, prompt
    ("extend", "u1 a1", "u1 a1 u2", "extend", "u1 a1 u2 aR", SAME),
    (
        "extend, with a reply only the client got",
        "u1 > !",
        "u1 a1 u2",
        "extend",
        "u1 a1 u2 aR",
        SAME,
    ),
    ("extend by a tool result", "u1 cx", "u1 cx rx", "extend", "u1 cx rx aR", SAME),
    ("retry", "u1 a1 u2 a2", "u1 a1 u2", "retry", "u1 a1 u2 aR", SAME),
    ("retry of an unanswered turn", "u1 a1 u2", "u1 a1 u2", "retry", "u1 a1 u2 aR", SAME),
    ("retry behind a tool result", "u1 cx rx a1", "u1 cx rx", "retry", "u1 cx rx aR", SAME),
    ("regenerate, tool steps included", "u1 cx rx > a1", "u1", "regenerate", "u1 aR", SAME),
    ("regenerate", "u0 a0 u1 cx rx > a1", "u0 a0 u1", "regenerate", "u0 a0 u1 aR", SAME),
    ("rewind to a recorded attempt", LONG, "u1 a1 u2", "rewind", "u1 a1 u2 aR", SAME),
    (
        "rewind to where nothing was asked",
        LONG + " u4 > a4",
        "u1 a1 u2",
        "rewind",
        "u1 a1 u2 aR",
        SAME,
    ),
    ("edit", "u1 a1 u2 a2", "u1 a1 u9", "edit", "u1 a1 u9 aR", SAME),
    ("edit of an unanswered message", "u1 a1 u2", "u1 a1 u9", "edit", "u1 a1 u9 aR", SAME),
    ("fork far back", LONG, "u1 a1 u9", "edit", "u1 a1 u9 aR", SAME),
    ("trimmed", LONG, "u2 a2 u3 a3 u4", "trimmed", LONG + " u4 aR", LONG + " u4"),
    ("trimmed to the last reply", LONG, "a3 u4", "trimmed", LONG + " u4 aR", LONG + " u4"),
    ("trimmed edit", LONG, "a1 u2 a2 u4", "trimmed_edit", "u1 a1 u2 a2 u4 aR", "u1 a1 u2 a2 u4"),
    ("delta: the newest message alone", LONG, "u4", "delta", LONG + " u4 aR", LONG + " u4"),
    ("delta: another device", LONG, "u8 a8 u9", "delta", LONG + " u8 a8 u9 aR", LONG + " u8 a8 u9"),
    ("delta: the newest result alone", "u1 cx", "rx", "delta", "u1 cx rx aR", "u1 cx rx"),
    (
        "compacted",
        LONG,
        "usummary u3 a3 u4",
        "compacted",
        LONG + " u4 aR",
        "usummary " + LONG + " u4",
    ),
    ("altered reply", "u1 a1 u2 a2", "u1 aX u2 a2 u3", "altered_reply", "u1 aX u2 a2 u3 aR", SAME),
    ("altered reply at the end", "u1 a1", "u1 aX u2", "altered_reply", "u1 aX u2 aR", SAME),
    ("altered user", LONG, "u1 a1 uX a2 u3 a3 u4", "altered_user", "u1 a1 uX a2 u3 a3 u4 aR", SAME),
    ("altered head", LONG, "uX a1 u2 a2 u3 a3 u4", "altered_user", "uX a1 u2 a2 u3 a3 u4 aR", SAME),
    ("stubbed", "u1 cx rx a1", "u1 cx rx=pruned a1 u2", "stubbed", "u1 cx rx a1 u2 aR", SAME),
    ("folded", "u1 cx rx cy ry a1", "u1 a1 u2", "folded", "u1 cx rx cy ry a1 u2 aR", SAME),
    ("folded and altered", "u1 cx rx a1", "u1 aX u2", "folded", "u1 cx rx a1 u2 aR", SAME),
    ("gapped", LONG, "u1 a1 u3 a3 u4", "gapped", LONG + " u4 aR", SAME),
    ("gapped, with filler", LONG, "u1 uomitted u3 a3 u4", "gapped", LONG + " u4 aR", SAME),
    ("inserted", "u1 u2 > a2", "u1 a1 u2 a2 u3", "inserted", "u1 a1 u2 a2 u3 aR", SAME),
    (
        "ephemeral: a reminder moved",
        "u1 s0 > a1",
        "u1 a1 u2 s0",
        "ephemeral",
        "u1 s0 a1 u2 aR",
        SAME,
    ),
    (
        "ephemeral: a reminder dropped",
        "u1 s0 > a1",
        "u1 a1 u2",
        "ephemeral",
        "u1 s0 a1 u2 aR",
        SAME,
    ),
    ("switch", TOLD + "; u1 a1 u9 > a9", LONG + " u4", "switch", LONG + " u4 aR", SAME),
    (
        "retry of a step",
        "u1 > cx+y; u1 cx+y rx ry > a1",
        "rx ry",
        "step_retry",
        "u1 cx+y rx ry aR",
        "u1 cx+y rx ry",
    ),
    ("continue our reply", "u1 a1", "u1 a1", "continue", "u1 a1 aR", SAME),
    (
        "continue a reply the client began",
        "u1 a1",
        "u1 a1 u2 aIt",
        "continue",
        "u1 a1 u2 aIt aR",
        SAME,
    ),
]


@pytest.mark.sample(37)  # each row, whole or as a stream
@pytest.mark.parametrize(
    ("before", "sent", "case", "live", "prompt"),
    [pytest.param(*row[1:], id=row[0]) for row in CASES],
)
async def test_the_table(
    play: Play, before: str, sent: str, case: str, live: str, prompt: str
) -> None:
    """What was sent has the name, the transcript and the prompt that the specification's table
    gives it."""
    await play.play_turns(before)
    turn = await play.turn(sent)
    assert turn.answer == "aR"
    assert turn.case == case
    assert await play.live() == live
    assert (turn.prompt == sent and turn.exact) if prompt == SAME else turn.prompt == prompt


# ── with a memory ─────────────────────────────────────────────────────────────────────────────────

SEVEN = " ".join(
    f"u{n} a{n}" for n in range(1, 8)
)  # covered through a5; a chunk is made of u6 a6; u7 a7 nobody has read

REMEMBERED = [
    # sent, case, live after the reply aR, prompt, coverage when it was sent
    ("extend", SEVEN + " u8", "extend", SEVEN + " u8 aR", "NOTES HINT u6 a6 u7 a7 u8", 10),
    ("regenerate", SEVEN[:-3], "retry", SEVEN[:-3] + " aR", "NOTES HINT u6 a6 u7", 10),
    ("trimmed", SEVEN[12:] + " u8", "trimmed", SEVEN + " u8 aR", "NOTES HINT u6 a6 u7 a7 u8", 10),
    (
        "trimmed within the tail",
        "a6 u7 a7 u8",
        "trimmed",
        SEVEN + " u8 aR",
        "NOTES HINT u6 a6 u7 a7 u8",
        10,
    ),
    ("delta", "u8", "delta", SEVEN + " u8 aR", "NOTES HINT u6 a6 u7 a7 u8", 10),
    (
        "compacted",
        "usum u7 a7 u8",
        "compacted",
        SEVEN + " u8 aR",
        "NOTES HINT usum u6 a6 u7 a7 u8",
        10,
    ),
    (
        "altered where covered",
        SEVEN.replace("a2", "aX") + " u8",
        "altered_reply",
        SEVEN + " aX u8 aR",
        "NOTES HINT aX u6 a6 u7 a7 u8",
        10,
    ),
    (
        "altered where read",
        SEVEN.replace("a6", "aX") + " u8",
        "altered_reply",
        SEVEN + " aX u8 aR",
        "NOTES HINT u6 aX u7 a7 u8",
        10,
    ),
    (
        "altered where unread",
        SEVEN.replace("a7", "aX") + " u8",
        "altered_reply",
        SEVEN[:-2] + "aX u8 aR",
        "NOTES HINT u6 a6 u7 aX u8",
        10,
    ),
    (
        "inserted where covered",
        SEVEN.replace("u3", "uX aY u3") + " u8",
        "inserted",
        SEVEN + " u8 aR",
        "NOTES HINT uX aY u6 a6 u7 a7 u8",
        10,
    ),
    (
        "inserted where uncovered",
        SEVEN.replace("u7", "uX aY u7") + " u8",
        "inserted",
        SEVEN.replace("u7", "uX aY u7") + " u8 aR",
        "NOTES HINT u6 a6 uX aY u7 a7 u8",
        10,
    ),
    (
        "gapped where covered",
        SEVEN.replace("u3 a3 ", "") + " u8",
        "gapped",
        SEVEN + " u8 aR",
        "NOTES HINT u6 a6 u7 a7 u8",
        10,
    ),
    (
        "gapped over the edge of coverage",
        SEVEN.replace("u5 a5 u6 a6 ", "uX ") + " u8",
        "gapped",
        SEVEN + " u8 aR",
        "NOTES HINT u6 a6 u7 a7 u8",
        10,
    ),
    (
        "fork in the tail",
        SEVEN[:-5] + "u9",
        "edit",
        SEVEN[:-5] + "u9 aR",
        "NOTES HINT u6 a6 u9",
        10,
    ),
    ("fork behind coverage", SEVEN[:24] + "u9", "edit", SEVEN[:24] + "u9 aR", "NOTES HINT u9", 8),
    ("rewind inside an entry", SEVEN[:20], "rewind", SEVEN[:20] + " aR", "NOTES HINT u3 a3 u4", 4),
    ("fork before any entry", "u1 a1 u9", "edit", "u1 a1 u9 aR", "u1 a1 u9", 0),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def small(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """A proxy whose every threshold is a handful of words."""
    memory = "scope: thread, observation: {message_tokens: 60, buffer_tokens: 20}"
    async with run_with_scripted_models(
        tmp_path_factory.mktemp("small"), memory=memory, models=Model()
    ) as run:
        yield run


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def remembered(small: Running, turn_events: TurnEvents, request: pytest.FixtureRequest) -> Play:
    return Play(small, turn_events, f"small-{next(numbers)}", stream=request.param)


@pytest.mark.sample(17)  # each row, whole or as a stream
@pytest.mark.parametrize(
    ("sent", "case", "live", "prompt", "coverage"),
    [pytest.param(*row[1:], id=row[0]) for row in REMEMBERED],
)
async def test_the_table_where_a_part_is_remembered(
    remembered: Play, sent: str, case: str, live: str, prompt: str, coverage: int
) -> None:
    """The notes stand for what they cover, the tail is the client's own, and a fork takes back what
    was noted of the other branch."""
    await remembered.play_turns(SEVEN)
    before = await remembered.memory()
    assert (before.coverage, before.chunked_to, before.count) == (10, 12, 14)
    turn = await remembered.turn(sent)
    assert turn.answer == "aR"
    assert turn.case == case
    assert await remembered.live() == live
    assert turn.prompt == prompt
    assert (await remembered.memory()).coverage == coverage


# ── what headers say ──────────────────────────────────────────────────────────────────────────────

HINTED = [
    # before, X-OM-History, sent, case, live after the reply aR, prompt
    ("full deletes what is not sent", LONG, "full", "u1 a1 u3 a3 u4", "edit", "u1 a1 u3 a3 u4 aR", SAME),
    ("full settles a lone edit", LONG, "full", "u9", "edit", "u9 aR", SAME),
    ("full goes on as ever", LONG, "full", LONG + " u4", "extend", LONG + " u4 aR", SAME),
    ("window rewinds nothing", "u1 a1 u2 a2 u1 > a3", "window", "u1 a3 u4", "trimmed", "u1 a1 u2 a2 u1 a3 u4 aR", "u1 a1 u2 a2 u1 a3 u4"),
    ("window goes on", LONG, "window", "u3 a3 u4", "trimmed", LONG + " u4 aR", LONG + " u4"),
    ("new appends known words", LONG, "new", "u1 a1", "delta", LONG + " u1 a1 aR", LONG + " u1 a1"),
    ("new, the same words again", "u1 > a1; u1 a1 u2 > a2", "new", "u2", "delta", "u1 a1 u2 a2 u2 aR", "u1 a1 u2 a2 u2"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "history", "sent", "case", "live", "prompt"),
    [pytest.param(*row[1:], id=row[0]) for row in HINTED],
)
async def test_the_history_header(
    play: Play, before: str, history: str, sent: str, case: str, live: str, prompt: str
) -> None:
    """X-OM-History says outright what guessing would get wrong."""
    await play.play_turns(before)
    turn = await play.turn(sent, **{"X-OM-History": history})
    assert (turn.case, await play.live()) == (case, live)
    assert (turn.prompt == sent and turn.exact) if prompt == SAME else turn.prompt == prompt


@pytest.mark.parametrize(
    ("headers", "case", "live"),
    [
        pytest.param(
            {"x-stainless-retry-count": "1"}, "retry", "u1 a1 u2 a2 uok aR", id="retried by the SDK"
        ),
        pytest.param(
            {"x-stainless-retry-count": "0"},
            "delta",
            "u1 a1 u2 a2 uok a3 uok aR",
            id="its first try",
        ),
        pytest.param({}, "delta", "u1 a1 u2 a2 uok a3 uok aR", id="said again"),
    ],
)
async def test_the_retry_header(play: Play, headers: dict[str, str], case: str, live: str) -> None:
    """To a client that sends only its newest message, the SDK's header tells a retry from the same
    words said again."""
    await play.play_turns("u1 > a1; u2 > a2; uok > a3")
    turn = await play.turn("uok", **headers)
    assert (turn.case, await play.live()) == (case, live)


async def test_the_retry_header_counts_for_the_newest_attempt_only(play: Play) -> None:
    """Once the thread has gone on, the same words are said again, whatever the header says."""
    await play.play_turns("u1 > a1; u2 > a2; uok > a3; u4 > a4")
    turn = await play.turn("uok", **{"x-stainless-retry-count": "2"})
    assert (turn.case, await play.live()) == ("delta", "u1 a1 u2 a2 uok a3 u4 a4 uok aR")


async def test_nothing_after_the_instructions(play: Play) -> None:
    """A request without a conversation goes through as it is and leaves no thread behind."""
    turn = await play.turn("")
    assert (turn.receipt["status"], turn.receipt["reason"], turn.exact) == (
        "off",
        "no-messages",
        True,
    )
    assert (await play.memory()).version == 0
