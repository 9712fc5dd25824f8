"""`scripts/notes` from a recording to its report, on small made-up conversations, with a program
that answers the files."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from om_proxy.testing.loopback import serve_on_loopback
from tests.bench.notes.__main__ import arguments, main, run, settings_of
from tests.bench.notes.folder import AnswerMissing, Folder, digest_prompt, write_whole
from tests.bench.notes.play import Stopped, merge
from tests.bench.notes.recorded import UNANSWERED, read_locomo, read_recording, read_time
from tests.bench.notes.server import Address, NotesServer

PROMPT = (("system", "Be brief."), ("user", "What now?"))


def turn(speaker: str, number: str, text: str, **more: str) -> dict[str, str]:
    return {"speaker": speaker, "dia_id": number, "text": text, **more}


TALK: dict[str, Any] = {
    "conversation": {
        "speaker_a": "Mara",
        "speaker_b": "Dale",
        "session_1_date_time": "7:31 pm on 21 January, 2022",
        "session_1": [
            turn("Dale", "D1:1", "Hello!"),
            turn("Mara", "D1:2", "I have two rabbits."),
            turn("Dale", "D1:3", "Nice."),
        ],
        "session_2_date_time": "12:05 am on 2 March, 2022",
        "session_2": [
            turn("Dale", "D2:1", "And?"),
            turn("Mara", "D2:2", "Look", blip_caption="a dock"),
        ],
        "session_3_date_time": "1:00 pm on 3 March, 2022",
        "session_3": [
            turn("Mara", "D3:1", "A third rabbit came."),
            turn("Dale", "D3:2", "Congratulations!"),
        ],
        # as in the data: dates of sessions that are not there
        "session_4_date_time": "1:00 pm on 4 March, 2022",
    },
    "qa": [
        {"question": "How many rabbits?", "answer": "two", "evidence": ["D1:2"], "category": 4},
        {"question": "What came?", "answer": "a third rabbit", "evidence": ["D3:1"], "category": 2},
    ],
}


# ── recordings ────────────────────────────────────────────────────────────────────────────────────


def test_talk_of_two_people() -> None:
    """A call for each reply; the first message of all was asked for by nobody; a message that ends
    a session gets its call that day."""
    found = read_locomo("talk", TALK)
    assert [len(call.sent) for call in found.calls] == [3, 4, 6, 8]
    assert [call.reply["content"] for call in found.calls] == [
        "Nice.",
        "And?",
        UNANSWERED,
        "Congratulations!",
    ]
    (said,) = found.conversations.values()
    assert [m["role"] for m in said] == [
        "assistant",
        "user",
        "assistant",
        "assistant",
        "user",
        "assistant",
        "user",
        "assistant",
    ]
    assert said[4]["content"] == "Look\n[shows a dock]"
    assert [(f.evidence, said[f.evidence[0]]["content"]) for f in found.facts] == [
        ((1,), "I have two rabbits."),
        ((6,), "A third rabbit came."),
    ]
    assert found.people == "User is Mara. Assistant is Dale."


def test_talk_has_its_times() -> None:
    """A session begins at its time, and goes on by half a minute a turn."""
    calls = read_locomo("talk", TALK).calls
    assert calls[0].replied_at == read_time("7:31 pm on 21 January, 2022") + 60
    assert calls[0].asked_at == calls[0].replied_at - 30
    assert calls[2].asked_at == read_time("12:05 am on 2 March, 2022") + 30
    assert all(call.asked_at < call.replied_at for call in calls)


def test_first_sessions_alone() -> None:
    """Facts of later sessions are not asked for."""
    found = read_locomo("talk", TALK, sessions=1, names=True)
    assert [len(found.calls), len(found.facts)] == [1, 1]
    assert found.calls[0].sent[1]["content"] == "Dale: Hello!"


SESSION: list[dict[str, Any]] = [
    {"role": "user", "content": "Port it.", "created_at": "2025-11-20T23:33:01Z"},
    {"role": "assistant", "content": "Done.", "created_at": "2025-11-20T23:33:11Z"},
]


@pytest.mark.parametrize(
    ("text", "name", "calls"),
    [
        (json.dumps([TALK]), "file:0", 4),
        ("\n".join(map(json.dumps, SESSION)), "file", 1),
        (
            json.dumps({"id": "1", "messages": [{"role": "system", "content": "x"}, *SESSION]}),
            "file",
            1,
        ),
    ],
    ids=["locomo", "session", "chats"],
)
def test_shapes_of_recordings(tmp_path: Path, text: str, name: str, calls: int) -> None:
    path = tmp_path / "file.json"
    path.write_text(text, encoding="utf-8")
    found = read_recording(path)
    assert (found.name, len(found.calls)) == (name, calls)


@pytest.mark.parametrize(
    ("text", "number", "said"),
    [
        ("{}", 0, "no recording"),
        ("", 0, "no recording"),
        (json.dumps([TALK]), 3, "0 to 0"),
        ('{"role": "user"}', 0, "created_at"),
    ],
)
def test_unknown_recording_is_told(tmp_path: Path, text: str, number: int, said: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=said):
        read_recording(path, number)


# ── the folder ────────────────────────────────────────────────────────────────────────────────────


def folder(path: Path, **more: Any) -> Folder:
    return Folder(path, **{"timeout_s": 30.0, "tell": lambda _: None, **more})


async def test_answer_is_waited_for(tmp_path: Path) -> None:
    """The prompt's file holds all of it and says where the answer goes."""
    asking = asyncio.create_task(folder(tmp_path).ask("observer", PROMPT))
    await asyncio.sleep(0)
    text = (tmp_path / "0001-observer.prompt.md").read_text(encoding="utf-8")
    assert "0001-observer.answer.md" in text
    assert "===== system =====\n\nBe brief.\n\n===== user =====\n\nWhat now?\n" in text
    assert "rename" in (tmp_path / "README.md").read_text(encoding="utf-8")
    write_whole(tmp_path / "0001-observer.answer.md", "* notes")
    assert await asking == "* notes"


async def test_no_answer_in_time(tmp_path: Path) -> None:
    with pytest.raises(AnswerMissing, match=r"0001-observer\.answer\.md"):
        await folder(tmp_path, timeout_s=0.0).ask("observer", PROMPT)


async def test_second_run_finds_the_answers(tmp_path: Path) -> None:
    """By the prompt, whatever its number; a new prompt goes on counting, judges by themselves."""
    with pytest.raises(AnswerMissing):
        await folder(tmp_path, timeout_s=0.0).ask("observer", PROMPT)
    write_whole(tmp_path / "0001-observer.answer.md", "late")
    again = folder(tmp_path, timeout_s=0.0)
    with pytest.raises(AnswerMissing, match="0002-reflector"):
        await again.ask("reflector", PROMPT)
    with pytest.raises(AnswerMissing, match="judge-0001"):
        await again.ask("judge", PROMPT)
    assert await again.ask("observer", PROMPT) == "late"


async def test_prompt_that_is_asked_again_is_another_call(tmp_path: Path) -> None:
    """An unusable answer is not given twice; the next run gives both, in order."""
    asked: list[Sequence[tuple[str, str]]] = []

    async def answer(prompt: Sequence[tuple[str, str]]) -> str:
        asked.append(prompt)
        return f"answer {len(asked)}"

    for _ in range(2):
        there = folder(tmp_path, answer_with=answer)
        assert [await there.ask("observer", PROMPT) for _ in range(2)] == ["answer 1", "answer 2"]
    assert len(asked) == 2


def test_digest_tells_kinds_roles_and_texts_apart() -> None:
    prompts = [
        ("observer", PROMPT),
        ("judge", PROMPT),
        ("observer", PROMPT[:1]),
        ("observer", (("system", "Be brief.user"), ("", "What now?"))),
    ]
    assert len({digest_prompt(kind, prompt) for kind, prompt in prompts}) == len(prompts)


# ── the server ────────────────────────────────────────────────────────────────────────────────────


async def test_slow_answer_keeps_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blanks go before the JSON while nobody has answered."""
    monkeypatch.setattr("tests.bench.notes.server.KEEP_ALIVE_EVERY_S", 0.0)
    beats = 0

    async def answer(kind: str, prompt: Sequence[tuple[str, str]]) -> str:
        nonlocal beats
        for _ in range(20):
            beats += 1
            await asyncio.sleep(0)
        return f"{kind}: {prompt[-1][1]}"

    server = NotesServer(answer, count=len)
    async with (
        serve_on_loopback(server, lifespan="off") as base,
        httpx.AsyncClient(trust_env=False, timeout=60) as client,
    ):
        body = {
            "model": "m",
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "<transcript></transcript>"}]}
            ],
        }
        response = await client.post(f"{base}/v1/chat/completions", json=body)
    assert response.content.startswith(b" ")
    assert (
        response.json()["choices"][0]["message"]["content"] == "observer: <transcript></transcript>"
    )
    assert [call.kind for call in server.calls] == ["observer"]


async def test_address_answers() -> None:
    """Any OpenAI-compatible model; one that was cut off has not answered."""
    reasons = ["stop", "length"]

    async def model(scope: Any, receive: Any, send: Any) -> None:
        choice = {"message": {"content": "* a"}, "finish_reason": reasons.pop(0)}
        content = json.dumps({"choices": [choice]}).encode()
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", b"application/json")],
            }
        )
        await send({"type": "http.response.body", "body": content})

    async with serve_on_loopback(model, lifespan="off") as base:
        address = Address(f"{base}/v1", "small", "sk-1", timeout_s=30)
        assert await address.answer(PROMPT) == "* a"
        with pytest.raises(ValueError, match="not whole"):
            await address.answer(PROMPT)


# ── a whole run ───────────────────────────────────────────────────────────────────────────────────


def long_talk() -> dict[str, Any]:
    """Sessions of a made-up talk, long enough for notes at small thresholds."""
    talk: dict[str, Any] = {"speaker_a": "Mara", "speaker_b": "Dale"}
    for session in range(1, 7):
        talk[f"session_{session}_date_time"] = f"7:31 pm on {session} March, 2022"
        talk[f"session_{session}"] = [
            turn(
                ("Mara", "Dale")[n % 2],
                f"D{session}:{n + 1}",
                f"On day {session} crate {n} went to dock {n + session}, " + "as agreed " * 20,
            )
            for n in range(8)
        ]
    asked = [{"question": "Which dock?", "answer": "dock", "evidence": ["D1:3"], "category": 4}]
    asked += [
        {"question": "Which animal?", "answer": "a zebra", "evidence": ["D1:1"], "category": 1}
    ]
    return {"conversation": talk, "qa": asked}


def answer_file(prompt: Path) -> str:
    """As a model would: short notes of what a transcript says, shorter ones of notes, a verdict on
    each fact."""
    text = prompt.read_text(encoding="utf-8")
    if prompt.name.startswith("judge"):
        return "q0: kept\nq1: lost"
    if "observer" in prompt.name:
        day = text.rpartition("<transcript>")[2].partition("crate")[0][-3:].strip()
        lines = "\n".join(
            f"* 🔴 (19:31) crate {n} went to its dock on day {day}, the {n * 7}th of its kind there"
            for n in range(2)
        )
        return f"<observations>\nDate: Mar 1, 2022\n{lines}\n</observations>\n<current-task>\ncount crates\n</current-task>"
    return "<observations>\nDate: Mar 1, 2022\n* 🔴 crates went to their dock\n</observations>"


def answer_all(path: Path, answer: Callable[[Path], str]) -> None:
    for prompt in path.glob("*.prompt.md"):
        there = prompt.with_name(prompt.name.replace(".prompt.", ".answer."))
        if not there.exists():
            write_whole(there, answer(prompt))


@asynccontextmanager
async def answering(path: Path, answer: Callable[[Path], str] = answer_file) -> AsyncIterator[None]:
    """Somebody who answers each prompt's file as it appears."""

    async def look() -> None:
        while True:
            answer_all(path, answer)
            await asyncio.sleep(0.01)

    looking = asyncio.create_task(look())
    try:
        yield
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking


def chosen(tmp_path: Path, *more: str) -> list[str]:
    path = tmp_path / "talk.json"
    path.write_text(json.dumps([long_talk()]), encoding="utf-8")
    thresholds = [
        "--message-tokens",
        "600",
        "--buffer-tokens",
        "200",
        "--observation-tokens",
        "150",
    ]
    return [f"{path}:0", "--folder", str(tmp_path / "notes"), *thresholds, "--timeout", "60", *more]


async def test_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every figure of the report follows from what was played; the second run asks nobody."""
    monkeypatch.setattr("tests.bench.notes.folder.LOOK_EVERY_S", 0.01)
    options = arguments(chosen(tmp_path, "--judge"))
    async with answering(tmp_path / "notes"):
        first = await run(options)
    files = sorted(path.name for path in (tmp_path / "notes").glob("*.prompt.md"))
    assert "0001-observer.prompt.md" in files
    assert "judge-0001.prompt.md" in files
    assert first["requests"] == 24
    assert first["messages"] == 48
    assert 8 <= first["covered_messages"] <= first["observed_messages"] <= 48
    assert first["calls"]["observer"]["calls"] >= 3
    assert first["calls"]["reflector"]["calls"] >= 1
    assert first["reflector_written_per_new_note_token"] > 0
    assert first["facts"]["words"]["before reflection"]["all"]["kept"] == 1
    assert first["facts"]["judge"]["after reflection"]["all"]["total"] == 2
    assert first["verdicts"]["words"]["after reflection"] == {"q0": "kept", "q1": "lost"}
    assert first["applied"] > 0
    assert (
        "current-task" not in first["hints"]
    )  # in a chat a user's message stands behind the notes
    assert first["compression"]["chat"]["times"] > 1
    assert "crates went to their dock" in first["notes"]["after reflection"]
    assert "the 7th of its kind" in first["notes"]["before reflection"]
    assert await run(options) == first
    assert sorted(path.name for path in (tmp_path / "notes").glob("*.prompt.md")) == files


async def test_run_with_an_address(tmp_path: Path) -> None:
    """A model behind an address is asked for what no file answers; its answers are kept as files,
    and so is the judge's."""
    asked: list[str] = []

    async def model(scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        request = json.loads(body)
        asked.append(request["model"])
        prompt = tmp_path / ("judge.md" if request["model"] == "strict" else "observer.md")
        prompt.write_text(request["messages"][-1]["content"], encoding="utf-8")
        choice = {"message": {"content": answer_file(prompt)}, "finish_reason": "stop"}
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", b"application/json")],
            }
        )
        await send(
            {"type": "http.response.body", "body": json.dumps({"choices": [choice]}).encode()}
        )

    async with serve_on_loopback(model, lifespan="off") as base:
        addresses = [
            "--memory-url",
            f"{base}/v1",
            "--memory-model",
            "small",
            "--judge-url",
            f"{base}/v1",
        ]
        options = arguments(
            chosen(tmp_path, *addresses, "--judge-model", "strict", "--observation-tokens", "40000")
        )
        first = await run(options)
        many = len(asked)
        assert await run(options) == first
    assert set(asked) == {"small", "strict"}
    assert len(asked) == many, "the second run asks nobody"
    assert first["verdicts"]["judge"]["before reflection"] == {"q0": "kept", "q1": "lost"}
    assert list(first["verdicts"]["judge"]) == ["before reflection"], "nothing was reflected"
    assert (tmp_path / "notes" / "judge-0001.answer.md").exists()


@pytest.mark.parametrize(
    ("status", "said"), [(401, "answered 401: no key"), (200, "without a text")]
)
async def test_run_with_a_model_that_refuses(tmp_path: Path, status: int, said: str) -> None:
    """The run ends with what the model said."""

    async def model(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        content = b"no key" if status == 401 else b'{"choices": [{"message": {"content": null}}]}'
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": content})

    async with serve_on_loopback(model, lifespan="off") as base:
        options = arguments(
            chosen(tmp_path, "--memory-url", f"{base}/v1", "--memory-model", "small")
        )
        with pytest.raises(Stopped, match=said):
            await run(options)


async def test_run_without_an_answer_stops(tmp_path: Path) -> None:
    """Its error names the file that is missing."""
    options = arguments(chosen(tmp_path))
    options.timeout = 0.0
    with pytest.raises(Stopped, match=r"0001-observer\.answer\.md"):
        await run(options)


def test_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report as text, and as JSON where it is asked for; errors are one line and status 1."""
    monkeypatch.setattr(
        "tests.bench.notes.__main__.logs.configure_log", lambda _: None
    )  # later tests read the log
    given = chosen(
        tmp_path,
        "--message-tokens",
        "100000",
        "--buffer-tokens",
        "false",
        "--out",
        str(tmp_path / "report.json"),
    )
    monkeypatch.setattr("sys.argv", ["scripts/notes", *given])
    assert main() == 0
    said = capsys.readouterr().out
    assert "talk:0: 24 requests (0 with notes), 48 messages, 0 observed, 0 covered" in said
    assert "no hint was shown" in said
    assert "Facts kept" not in said, "none of them is in notes"
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["applied"] == 0
    monkeypatch.setattr("sys.argv", ["scripts/notes", "nowhere.json", "--folder", str(tmp_path)])
    assert main() == 1
    assert "no recording at nowhere.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    "given",
    [
        ["coding"],
        ["coding", "--memory-url", "http://h/v1"],
        ["coding", "--folder", "f", "--judge-model", "m"],
    ],
)
def test_command_needs_a_model(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(given)
    assert "-url" in capsys.readouterr().err


def test_settings_of_the_command() -> None:
    """Thresholds and any other key, one over the other."""
    given = [
        "x",
        "--folder",
        "f",
        "--buffer-tokens",
        "false",
        "--set",
        "memory.observation.redact=false",
        "--set",
        "context.layout=blocks",
    ]
    assert settings_of(arguments(given)) == {
        "memory": {"observation": {"buffer_tokens": False, "redact": False}, "reflection": {}},
        "context": {"layout": "blocks"},
    }
    with pytest.raises(ValueError, match="KEY=VALUE"):
        settings_of(arguments(["x", "--folder", "f", "--set", "a.b"]))
    assert merge({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}, "d": 4}) == {
        "a": {"b": 3, "c": 2},
        "d": 4,
    }


def test_script_runs_anywhere(tmp_path: Path) -> None:
    """A caller's folder with modules of its own changes nothing: `python -m` would import them."""
    (tmp_path / "yaml.py").write_text("raise SystemExit('not this one')", encoding="utf-8")
    script = Path(__file__).parents[1] / "scripts" / "notes"
    said = subprocess.run(
        [script, "nowhere", "--folder", "f"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (said.returncode, said.stderr) == (
        1,
        "scripts/notes: no recording at nowhere; name a file, or the recordings' folder with --data\n",
    )
