"""Hold what came of a client's conversation to the promises: the answers, the prompts, the receipts
and the memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import orjson
from structlog.typing import EventDict

from om_proxy.testing.scripted import OBSERVER, RecordedRequest, message_text
from tests.clients.conversation import Turn, transcript
from tests.clients.look_ups import is_later_round
from tests.e2e.differential.published import refused
from tests.e2e.running import Running

NOTES = "\n<observations>\n"
HINT = "Note from the system"
KEY = "sk-client-0123456789abcdef0123456789abcdef"  # every client has it


@dataclass(frozen=True)
class Verdict:
    """Figures of a run that held."""

    turns: int
    requests: int
    streamed: int  # of them
    applied: int  # requests whose prompt was rewritten
    aside: int  # side requests, which have no memory
    comments: str = ""  # what its streams began with
    look_ups: int = 0  # requests that the proxy made for them

    def __str__(self) -> str:
        aside = (
            f", {self.aside} side request{'s' * (self.aside > 1)} without memory"
            if self.aside
            else ""
        )
        figures = (
            f"{self.turns} turns, {self.requests} requests, {self.streamed} streamed, "
            f"{self.applied} with memory applied"
        )
        rounds = f", {self.look_ups} more rounds for look-ups" if self.look_ups else ""
        return f"{figures}{aside}{rounds}{self.comments}"


async def judged(
    run: Running,
    stories: Sequence[EventDict],
    turns: Sequence[Turn],
    answers: Sequence[str],
    thread: str,
    resource: str,
) -> Verdict:
    """Raises AssertionError for what does not hold. `thread`, `resource`: as the recipe or the
    client names them."""
    await run.app.background.wait_idle()
    assert [a.strip() for a in answers] == [t.answer.strip() for t in turns], (
        "the client shows what the model server said"
    )
    chats = [story for story in stories if story["memory"] != "off"]
    aside = [story for story in stories if story["memory"] == "off"]
    assert {story["status"] for story in stories} == {200}
    assert {story["memory"] for story in chats} == {"raw", "applied"}, (
        f"receipts: {[(s['memory'], s['reason']) for s in stories]}"
    )
    assert {story["reason"] for story in aside} <= {"side-request"}
    rounds = [seen for seen in run.models.requests if seen.model != OBSERVER]
    asked = [seen for seen in rounds if not is_later_round(seen)]
    assert len(asked) == len(stories), "one request of the model server for each of the client"
    for seen in rounds:
        assert refused(orjson.loads(seen.body)) is None, "a prompt that a model server takes"
        assert dict(seen.headers)[b"authorization"] == f"Bearer {KEY}".encode(), (
            "the client's own key, passed on"
        )
        assert not [name for name, _ in seen.headers if name.startswith(b"x-om-")], (
            "what is said to the proxy stays there"
        )
    await _memory(run, turns, thread, resource)
    told = {turn.say for turn in turns}
    mains = [seen for seen in asked if _is_of(seen, told)]
    assert len(mains) == len(chats), "memory is for the turns, and for nothing else"
    the_prompt_holds(mains[-1], turns)
    streamed = sum(bool(orjson.loads(seen.body).get("stream")) for seen in mains)
    return Verdict(
        len(turns),
        len(mains),
        streamed,
        sum(story["memory"] == "applied" for story in chats),
        len(aside),
        look_ups=len(rounds) - len(asked),
    )


def _is_of(seen: RecordedRequest, told: set[str]) -> bool:
    """Whether this is a request of the conversation; those for a title may quote it."""
    said = [message_text(m).strip() for m in seen.messages if m["role"] == "user"]
    return said[-1] in told and (said[0] in told or said[0].startswith(HINT))


async def _memory(run: Running, turns: Sequence[Turn], thread: str, resource: str) -> None:
    """One thread, under the names the recipe gives it; in it the conversation and nothing else, its
    older part observed."""
    memory = await run.memory()
    assert (memory.key.thread, memory.key.resource) == (thread, resource)
    assert memory.log.entries, "the conversation crossed an activation"
    stored = [orjson.loads(m.item.raw) for m in await run.app.store.messages(memory.key, 0)]
    expected = list(transcript(turns))
    assert [m["role"] for m in stored] == [role for role, _ in expected]
    for said, (_, gist) in zip(stored, expected, strict=True):
        assert gist in (
            message_text(said).strip(),
            *(call["id"] for call in said.get("tool_calls") or ()),
        ), f"{gist!r} became {said}"


def the_prompt_holds(seen: RecordedRequest, turns: Sequence[Turn]) -> None:
    """What the model was sent last: instructions, notes, and the newest turns raw."""
    said = [message_text(m) for m in seen.messages if m["role"] == "user"]
    raw = [n for n, turn in enumerate(turns) if turn.say in said]
    assert any(NOTES in message_text(m) for m in seen.messages), "the notes stand in the prompt"
    assert raw, "the newest turn is in the prompt"
    assert raw == list(range(raw[0], len(turns))), "the tail is the newest turns, without a gap"
    assert raw[0] > 0, "older turns are no longer sent"
