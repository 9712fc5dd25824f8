"""The arithmetic of `scripts/bench cost`."""

from __future__ import annotations

from pathlib import Path

import orjson

from om_proxy.agents.models import create_encoder
from om_proxy.proof.billing import (
    BilledTokens,
    CacheRules,
    SentPrompt,
    bill_calls,
)
from tests.bench.cost import Cached, fitted, unbroken
from tests.bench.cost_compression import Kind, dialogues, noted
from tests.bench.cost_new import new
from tests.bench.cost_profiles import CONFIG, profiles
from tests.bench.recordings import Session, paused, spaced
from tests.bench.replaying import Reading, counted
from tests.proof.test_scripted_notes import by_words

RULES = CacheRules(300, min_tokens=100)
A, B, C = ("system", 100), ("first", 50), ("second", 30)


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
    calls = [SentPrompt(at, [A, B]) for at in (0, 10, 20, 400, 410)]
    assert unbroken(calls, {1}, RULES) == [2, 4]


def test_share_served() -> None:
    """Of all their tokens, and of those that the prompt before them had; a changed beginning shows
    in the second."""
    calls = [SentPrompt(0, [A, B]), SentPrompt(1, [A, B, C]), SentPrompt(2, [A, ("edited", 50), C])]
    bills = list(bill_calls(calls, RULES))
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
        SentPrompt(at, [("tools", 200), *map(counted, messages)])
        for at, messages in enumerate((first, second))
    ]
    (found,) = new([first, second], calls, list(bill_calls(calls, RULES)), [1])
    assert found.kinds == {m["role"]: counted(m)[1] for m in second[1:]}
    assert (found.mostly, found.read, found.most) == (
        "tool results",
        calls[0].tokens,
        calls[0].tokens,
    )
    (found,) = new([first, second], calls, [BilledTokens(), BilledTokens(read=100)], [1])
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
