"""Hold what came of a client's conversation to the promises: the answers, the prompts, the receipts
and the memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import orjson
from structlog.typing import EventDict

from om_proxy.common.apis import ApiName
from om_proxy.testing.scripted import OBSERVER, RecordedRequest, message_text
from om_proxy.wire.apis.registry import get_api
from tests.clients.conversation import Turn, transcript
from tests.clients.look_ups import is_later_round
from tests.e2e.running import Running
from tests.support.published_apis import find_disorder, find_misfit

NOTES = "\n<observations>\n"
HINT = "Note from the system"
KEY = "sk-client-0123456789abcdef0123456789abcdef"  # every client has it
KEYS = {(b"authorization", f"Bearer {KEY}".encode()), (b"x-api-key", KEY.encode())}


@dataclass(frozen=True)
class Verdict:
    """Figures of a run that held."""

    turns: int
    requests: int
    streamed: int  # of them
    applied: int  # requests whose prompt was rewritten
    aside: int  # side requests, which have no memory
    activations: int  # of notes, as its prompts show them
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
    api: ApiName,
    *,
    fits_types: bool = True,
) -> Verdict:
    """Raises AssertionError for what does not hold. `thread`, `resource`: as the recipe or the
    client names them. `api`: by which the client asks. `fits_types`: whether what it sends itself
    fits the vendor's types."""
    await run.app.background.wait_idle()
    assert len(answers) == len(turns)
    for answer, turn in zip(answers, turns, strict=True):
        assert answer.strip() == turn.answer.strip(), "the client shows what the model server said"
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
        body = orjson.loads(seen.body)
        refusal = find_misfit(api, body) if fits_types else None
        if not body.get("previous_response_id"):  # else the server has the calls of its results
            refusal = refusal or find_disorder(api, body)
        assert refusal is None, f"a prompt that no model server takes: {refusal}"
        assert KEYS & set(seen.headers), "the client's own key, passed on"
        assert not [name for name, _ in seen.headers if name.startswith(b"x-om-")], (
            "what is said to the proxy stays there"
        )
    await _memory(run, turns, thread, resource)
    told = {turn.say for turn in turns}
    mains = [seen for seen in asked if _is_of(seen, told)]
    assert len(mains) == len(chats), "memory is for the turns, and for nothing else"
    the_prompt_holds(mains[-1], turns)
    noted = {text for seen in mains for m in seen.messages if NOTES in (text := message_text(m))}
    streamed = sum(bool(orjson.loads(seen.body).get("stream")) for seen in mains)
    return Verdict(
        len(turns),
        len(mains),
        streamed,
        sum(story["memory"] == "applied" for story in chats),
        len(aside),
        len(noted),
        look_ups=len(rounds) - len(asked),
    )


def judge_passed_on(
    run: Running, stories: Sequence[EventDict], heard: Sequence[bytes], since: int
) -> None:
    """Hold the requests without a thread, those from `since` on, to this: the model server got the
    bytes that the client sent (`heard`), and nothing is remembered. Raise AssertionError."""
    assert {(story["memory"], story["reason"]) for story in stories} == {("off", "no-thread")}
    passed = run.models.requests[since:]
    assert len(passed) == len(stories)
    for seen in passed:
        assert any(seen.body in said for said in heard), "without a thread, equal bytes"


def _is_of(seen: RecordedRequest, told: set[str]) -> bool:
    """Whether this is a request of the conversation; those for a title may quote it."""
    said = [message_text(m).strip() for m in seen.messages if m["role"] == "user"]
    return not said or (said[-1] in told and (said[0] in told or said[0].startswith(HINT)))


async def _memory(run: Running, turns: Sequence[Turn], thread: str, resource: str) -> None:
    """One thread, under the names the recipe gives it; in it the conversation and nothing else, its
    older part observed."""
    memory = await run.memory()
    assert (memory.key.thread, memory.key.resource) == (thread, resource)
    assert memory.log.entries, "the conversation crossed an activation"
    stored = [
        get_api(m.item.api).read_chat_message(m.item.raw)
        for m in await run.app.store.messages(memory.key, 0)
    ]
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
