"""The arithmetic of `scripts/bench cost`: a provider's prompt cache in small cases made by hand,
and the scripted note-taker."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from om_proxy.agents.models import Price, create_encoder
from om_proxy.memory.notes.sections import split_by_thread
from tests.bench.billing import Rules, Sent, Used, dollars, total, used
from tests.bench.cost import Cached, fitted, unbroken
from tests.bench.cost_compression import Kind, dialogues, noted
from tests.bench.cost_new import new
from tests.bench.cost_profiles import CONFIG, profiles
from tests.bench.note_taker import answered_apart, drawn, taken
from tests.bench.recordings import Session, paused, spaced
from tests.bench.replaying import Reading, counted

RULES = Rules(300, least=100)
A, B, C = ("system", 100), ("first", 50), ("second", 30)


def test_first_call_is_written() -> None:
    """Nothing is kept of what was never sent."""
    assert list(used([Sent(0, [A, B], output=7)], RULES)) == [Used(written=150, output=7)]


def test_longer_prompt_reads_its_beginning() -> None:
    """What stood in the call before is read, what is new is written."""
    assert list(used([Sent(0, [A, B]), Sent(10, [A, B, C])], RULES))[1] == Used(
        read=150, written=30
    )


@pytest.mark.parametrize(("pause", "read"), [(300, 150), (300.5, 0)])
def test_lifetime(pause: float, read: int) -> None:
    """A beginning lives so long after its last use, and no longer."""
    assert list(used([Sent(0, [A, B]), Sent(pause, [A, B])], RULES))[1].read == read


def test_use_prolongs_what_was_used_and_nothing_else() -> None:
    """At 500 s the system message was used 200 s ago, the rest of the first prompt 500 s ago."""
    calls = [
        Sent(0, [A, B]),
        Sent(200, [A, C]),
        Sent(400, [A]),
        Sent(500, [A, B]),
        Sent(501, [A, C]),
    ]
    assert [call.read for call in used(calls, RULES)] == [0, 100, 100, 100, 100]


def test_changed_message_breaks_what_follows() -> None:
    """A beginning ends at the first message that differs, though the ones behind it are the
    same."""
    assert list(used([Sent(0, [A, B, C]), Sent(1, [A, ("edited", 50), C])], RULES))[1] == Used(
        read=100, written=80
    )


def test_short_prompts_are_paid_in_full() -> None:
    """Below the least length nothing is kept; a prompt that has grown beyond it is written
    whole."""
    short = [("system", 60)]
    assert list(used([Sent(0, short), Sent(1, short), Sent(2, [*short, B])], RULES)) == [
        Used(fresh=60),
        Used(fresh=60),
        Used(written=110),
    ]


def test_short_beginnings_are_not_found() -> None:
    """A long prompt that shares less than the least length with those before it."""
    assert list(used([Sent(0, [B, A]), Sent(1, [B, ("other", 100)])], RULES))[1] == Used(
        written=150
    )


def test_steps() -> None:
    """What is found is rounded down to whole steps; the rest is written."""
    assert list(used([Sent(0, [A, B]), Sent(1, [A, B, C])], Rules(300, least=100, step=64)))[
        1
    ] == Used(read=128, written=52)


def test_lost_cache() -> None:
    """Before a call of `lost` the provider has forgotten everything; the call after it finds what
    that one wrote."""
    calls = [Sent(0, [A, B]), Sent(1, [A, B]), Sent(2, [A, B])]
    assert [call.read for call in used(calls, RULES, lost={1})] == [0, 0, 150]


def test_dollars() -> None:
    """Each kind of token at its own price."""
    price = Price(input=3.0, output=15.0, cached_input=0.3, cache_write=3.75)
    calls = [Used(read=10, written=4), Used(fresh=2, output=1)]
    assert dollars(total(calls), price) == pytest.approx(3.0 + 15.0 + 6.0 + 15.0)
    assert total(calls).prompt == 16
    assert total(calls).share == pytest.approx(10 / 16)
    assert Used().share == 0


TRANSCRIPT = "\n".join(
    [
        "Date: May 22, 2023",
        *(f"User (09:{n:02}): the dock {n} takes no van above {n} metres" for n in range(50)),
    ]
)


def by_words(text: str) -> int:
    return len(text.split())


def test_note_taker_keeps_its_length() -> None:
    """Notes come to the tokens asked for, within one piece, and are drawn from the whole
    transcript."""
    notes = taken(TRANSCRIPT, 120, 60, by_words)
    assert 100 <= by_words(notes) <= 140
    assert "the dock 0 " in notes
    assert any(f"the dock {n} " in notes for n in range(40, 50))


def test_note_taker_says_nothing_twice() -> None:
    """A repeated line is one piece: notes that repeat themselves are refused as a loop."""
    assert list(
        drawn("User (09:00): yes, let us do it so\nUser (09:01): yes, let us do it so\n")
    ) == ["* 🟡 (10:00) yes, let us do it so"]


RESULTS = "\n".join(
    [
        "Tool result ls (09:01):",
        *(f"  crate {n} stands at dock {n} since {n} days" for n in range(50)),
    ]
)


def test_note_taker_tells_results_from_text() -> None:
    """What a tool returned is marked as that to its last line, and has a length of its own."""
    both = f"{TRANSCRIPT}\n{RESULTS}\nAssistant (09:02): all fifty of them are there"
    assert [line[2] for line in drawn(both)] == ["🟡"] * 50 + ["🟢"] * 50 + ["🟡"]
    notes = taken(both, 400, 80, by_words).splitlines()
    sizes = {mark: sum(by_words(line) for line in notes if line[2] == mark) for mark in "🟡🟢"}
    assert 180 <= sizes["🟡"] <= 240, "half of the transcript is text"
    assert 30 <= sizes["🟢"] <= 50


def test_note_taker_answers_threads_apart() -> None:
    """Each section holds the notes of its own thread: without sections, nobody knows whose they
    are."""
    first, second = "a" * 16, "b" * 16
    new = (
        f'<thread id="{first}">\nUser (09:00): the dock 1 takes no van\n</thread>\n'
        f'<thread id="{second}">\nUser (09:00): the dock 2 takes any van\n</thread>\n'
    )
    notes = answered_apart(new, lambda text: "\n".join(drawn(text)))
    assert split_by_thread(notes, {first, second}) == {
        first: "\n* 🟡 (10:00) the dock 1 takes no van\n",
        second: "\n* 🟡 (10:00) the dock 2 takes any van\n",
    }


def said(text: str, role: str = "user") -> dict[str, str]:
    return {"role": role, "content": text}


CHAT = [
    said("be brief", "system"),
    *(said(f"word {n} and so on", ("user", "assistant")[n % 2]) for n in range(6)),
]
CALLS = list(spaced("t", CHAT, 1_000.0, 30.0))


def test_calls_of_a_conversation() -> None:
    """A call for each assistant message, with all before it, at even distances."""
    assert [(len(call.sent), call.reply, call.asked_at) for call in CALLS] == [
        (2, CHAT[2], 1_000.0),
        (4, CHAT[4], 1_030.0),
        (6, CHAT[6], 1_060.0),
    ]


def test_reading_is_fitted_to_the_recorded_contexts() -> None:
    """Contexts of 1 612 tokens and twice those of o200k are read as just that."""
    sizes = [sum(counted(m)[1] for m in call.sent) for call in CALLS]
    usage = [
        {"input": 3, "cacheRead": 0, "cacheWrite": 1_609 + 2 * size, "output": 1} for size in sizes
    ]
    assert fitted(Session(CALLS, usage, "m")) == Reading(2.0, 1_612)


def test_reading_counts_what_no_message_holds() -> None:
    """The tools stand in front, the same in every prompt; the messages are scaled."""
    prompt = Reading(2.0, 500).sent(CALLS[0], CALLS[0].sent).prompt
    assert prompt[0] == ("tools", 500)
    assert [tokens for _, tokens in prompt[1:]] == [2 * counted(m)[1] for m in CALLS[0].sent]
    tool = b'[{"name":"recall"}]'
    with_tool = Reading(2.0, 500).sent(CALLS[0], CALLS[0].sent, tool).prompt
    assert with_tool[0][0] != prompt[0][0]
    assert with_tool[0][1] == 500 + 2 * create_encoder("")(tool.decode())


def test_lost_caches_as_pauses() -> None:
    """Before a call whose cache was lost lies a pause longer than it lives; all later calls move
    with it."""
    moved = paused(CALLS, {1}, 300)
    assert moved[1].asked_at - moved[0].replied_at == 301
    assert [call.asked_at - call.replied_at for call in moved] == [-15.0] * 3
    assert moved[2].asked_at - moved[1].asked_at == 30


def test_what_follows_no_break() -> None:
    """Neither the first call nor a broken one, nor one after a pause longer than the cache
    lives."""
    calls = [Sent(at, [A, B]) for at in (0, 10, 20, 400, 410)]
    assert unbroken(calls, {1}, RULES) == [2, 4]


def test_share_served() -> None:
    """Of all their tokens, and of those that the prompt before them had; a changed beginning shows
    in the second."""
    calls = [Sent(0, [A, B]), Sent(1, [A, B, C]), Sent(2, [A, ("edited", 50), C])]
    bills = list(used(calls, RULES))
    assert Cached.of(calls, bills, [1]) == Cached(1, 150 / 180, 1.0, 1)
    assert Cached.of(calls, bills, [1, 2]) == Cached(2, 250 / 360, 100 / 180, 2)


def test_what_is_new_in_a_prompt() -> None:
    """All that stands behind the prompt before it, by who said it; the best cache there could be
    serves the rest."""
    first, second = (
        [said("hello there")],
        [said("hello there"), said("hi", "assistant"), said("1 2 3 4 5", "tool"), said("so?")],
    )
    calls = [
        Sent(at, [("tools", 200), *map(counted, messages)])
        for at, messages in enumerate((first, second))
    ]
    (found,) = new([first, second], calls, list(used(calls, RULES)), [1])
    assert found.kinds == {m["role"]: counted(m)[1] for m in second[1:]}
    assert (found.mostly, found.read, found.most) == (
        "tool results",
        calls[0].tokens,
        calls[0].tokens,
    )
    (found,) = new([first, second], calls, [Used(), Used(read=100)], [1])
    assert found.most - found.read == calls[0].tokens - 100, (
        "what a worse cache did not serve shows"
    )


def test_notes_by_what_they_are_about() -> None:
    """The note-taker's marks tell; dates count as text."""
    texts = ["Date: May 22, 2023\n* 🟡 (10:00) four words of text", "* 🟢 (10:00) a result"]
    assert noted(texts, by_words) == (4 + 3 + 4, 3 + 2)
    assert Kind(120, 10).times == 12
    assert Kind(1, 2) + Kind(10, 20) == Kind(11, 22)


def test_dialogues_beside_their_notes(tmp_path: Path) -> None:
    """Sessions without notes count on neither side."""
    session = [
        {"speaker": "Ann", "text": f"the dock {n} takes no van above {n} metres"} for n in range(9)
    ]
    talk = {
        "speaker_a": "Ann",
        "session_1": session,
        "session_1_date_time": "noon",
        "session_2": session,
    }
    notes = {"session_1_observation": {"Ann": [["Ann named nine docks.", "D1:1"]]}}
    path = tmp_path / "talks.json"
    path.write_bytes(orjson.dumps([{"conversation": talk, "observation": notes}]))
    (found,) = dialogues(path)
    assert found.source == sum(
        counted({"role": "user", "content": f"Ann: {turn['text']}"})[1] for turn in session
    )
    assert 8 <= found.notes <= 16


def test_profiles_of_the_configuration() -> None:
    """The three that the file offers, as a memory's section; who observes is told apart."""
    found = list(profiles(CONFIG.read_text(encoding="utf-8")))
    assert [profile.name for profile in found] == [
        "Long agent runs",
        "Chat with daily visits",
        "Cheap actor",
    ]
    assert all("model" not in orjson.loads(f"{{{profile.settings}}}") for profile in found)
    text = "# Some use: what for.\n# More of it.\n#\n#| memory:\n#|   model: a/b\n#|   observation: {message_tokens: 9}\n"
    assert list(profiles(text)) == [("Some use", "b", '"observation": {"message_tokens": 9}')]
