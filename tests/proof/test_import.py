"""`om-proxy import --from`: a history of another program becomes threads with its times."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from om_proxy.cli import main
from om_proxy.engine.turns.committing import Committer
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import OBSERVER, ScriptedServer, message_text
from tests.e2e.running import SMALL, Running
from tests.e2e.test_moving import run_at_present, run_command
from tests.proof.test_readers import HISTORIES
from tests.support.interrupts import heed_ctrl_c
from tests.support.postgres_server import find_postgres_url, own_schema
from tests.support.redis_server import find_redis_url, own_prefix

JAN_2 = 1767348000  # 2026-01-02T10:00:00Z
DAY_S = 86_400
REPORT = "Crate {n} weighs {n} kilos, was painted and goes to dock {n} at Quarry Steps. " * 8
IMPORT = ("import", "--resource", "ana", "--config", "om.yaml")


def led(turns: int) -> list[dict[str, Any]]:
    """A turn a day."""
    return [
        {"role": role, "content": content.format(n=n), "created_at": JAN_2 + n * DAY_S + after_s}
        for n in range(turns)
        for role, content, after_s in (("user", REPORT, 0), ("assistant", "Noted {n}.", 60))
    ]


def write_history(path: Path, **conversations: list[dict[str, Any]]) -> str:
    lines = [{"id": name, "messages": said} for name, said in conversations.items()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def write_settings(text: str) -> None:
    Path("om.yaml").write_text(text)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the configuration of a store that is not there yet."""
    monkeypatch.chdir(tmp_path)
    Path("om.yaml").write_text("storage: {url: sqlite:///om.db}\n")
    return tmp_path


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def storage(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    with ExitStack() as stack:
        keys = f'url: "sqlite:///{folder}/om.db"'
        if request.param == "postgres":
            url = find_postgres_url()
            keys = f'url: "{url}", prefix: {stack.enter_context(own_schema(url))}, timeout: 30s'
        if request.param == "redis":
            url = find_redis_url()
            keys = f'url: "{url}", prefix: {stack.enter_context(own_prefix(url))}, timeout: 30s'
        Path("om.yaml").write_text(f"storage: {{{keys}}}\nmemory: {{{SMALL}}}\n")
        yield keys


async def list_messages(run: Running, thread: str) -> list[tuple[str, float]]:
    (memory,) = [one for one in await run.memories() if one.key.thread == thread]
    assert memory.key.resource == "ana"
    messages = await run.app.store.messages(memory.key, 0)
    return [(json.loads(one.item.raw)["content"], one.at) for one in messages]


async def test_a_client_goes_on_with_its_history(
    folder: Path, storage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The times are those of the file. No model is asked before the client's next request, whose
    notes have the file's dates. The same import again, also afterwards, creates nothing."""
    said = led(12)
    history = write_history(folder / "old.jsonl", crates=said, short=said[:2])
    async with run_at_present(folder, storage) as run:
        await run.chat("greeting").say("Hello.")
        await run.app.background.wait_idle()

    assert await run_command(*IMPORT, "--from", "openai-jsonl", history) == 0
    assert "imported: 2 threads with 26 messages" in capsys.readouterr().out
    assert await run_command(*IMPORT, "--from", "messages", history) == 0
    again = "imported: 0 threads with 0 messages\nalready there: 2 threads"
    assert again in capsys.readouterr().out

    async with run_at_present(folder, storage) as run:
        expected = [(one["content"], one["created_at"]) for one in said]
        assert await list_messages(run, "crates") == expected
        due = await run.app.store.due_threads(time.time() + 365 * DAY_S, 100)
        assert {key.thread for key in due} <= {"greeting"}
        await run.app.background.wait_idle()
        assert run.models.requests_to(OBSERVER) == []

        chat = run.chat("crates", **{"x-om-resource": "ana"})
        chat.history = [{k: v for k, v in one.items() if k != "created_at"} for one in said]
        await chat.say("How heavy is crate 3?")
        await run.app.background.wait_idle()
        _, receipt = await chat.say("And crate 4?")
        assert receipt["status"] == "applied"
        assert len(await list_messages(run, "crates")) == 28
        told = message_text(run.models.requests_to(OBSERVER)[0].messages[-1])
        assert "on or before" not in told
        assert re.findall(r"^Date: (\w+, \w+ \d+, 2026)", told, re.MULTILINE)[:2] == [
            "Friday, Jan 2, 2026",
            "Saturday, Jan 3, 2026",
        ]

    assert await run_command(*IMPORT, "--from", "messages", history) == 0
    assert again in capsys.readouterr().out


@pytest.mark.parametrize(
    ("case", "program", "counts"),
    [
        ("chatgpt", "chatgpt", "imported: 2 threads with 7 messages"),
        ("claude-ai", "claude", "imported: 1 thread with 9 messages"),
        ("open-webui", "open-webui", "imported: 2 threads with 5 messages"),
        ("librechat", "librechat", "imported: 1 thread with 6 messages"),
    ],
)
def test_exports(
    folder: Path, capsys: pytest.CaptureFixture[str], case: str, program: str, counts: str
) -> None:
    """What could not be read, or was mended, is counted by kind."""
    (path,) = (HISTORIES / case).glob("input*")
    assert main([*IMPORT, "--tenant", "local", "--from", program, str(path)]) == 0
    out = capsys.readouterr().out
    assert counts in out
    for expected in json.loads((HISTORIES / case / "expected.json").read_text()):
        for kind in expected["notices"]:
            assert f"{kind}: " in out
    assert main([*IMPORT, "--from", program, str(path)]) == 0
    assert "imported: 0 threads" in capsys.readouterr().out


async def test_a_shared_log_is_not_due_either(folder: Path) -> None:
    """The threads of a resource share one: the next request of any of them has notes made."""
    memory = f"scope: resource, {SMALL}"
    write_settings(f"storage: {{url: sqlite:///om.db}}\nmemory: {{{memory}}}\n")
    history = write_history(folder / "old.jsonl", a=led(12), b=led(12))
    assert await run_command(*IMPORT, "--tenant", "local", "--from", "messages", history) == 0
    async with run_at_present(folder, 'url: "sqlite:///om.db"') as run:
        assert {one.scope for one in await run.memories()} == {"resource"}
        assert await run.app.store.due_threads(time.time() + 365 * DAY_S, 100) == ()


def test_a_dry_run_writes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = write_history(folder / "old.jsonl", a=led(3), b=led(1))
    assert main([*IMPORT, "--from", "messages", history, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "would be imported: 2 threads with 8 messages, about " in out
    assert "$" not in out
    assert not Path("om.db").exists()


def test_a_thread_has_the_title_of_its_program(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new thread, once: a later import leaves a title that was changed here."""
    chat = {
        "title": "Garden\x1b shed",
        "models": ["m"],
        "history": {"currentId": "b", "messages": {}},
    }
    for name, parent, role in (("a", None, "user"), ("b", "a", "assistant")):
        chat["history"]["messages"][name] = {
            "id": name, "parentId": parent, "role": role, "content": f"Said {name}.", "timestamp": JAN_2
        }  # fmt: skip
    Path("chats.json").write_text(
        json.dumps([{"id": "shed", "title": chat["title"], "chat": chat}])
    )
    arguments = [*IMPORT, "--tenant", "local", "--from", "open-webui", "chats.json"]
    change = ["api", "PATCH", "/threads/shed?resource=ana&tenant=local", "--config", "om.yaml"]

    def read_title() -> str:
        capsys.readouterr()
        assert main(["threads", "shed", "--json", "--config", "om.yaml"]) == 0
        return str(json.loads(capsys.readouterr().out)["title"])

    assert main(arguments) == 0
    assert read_title() == "Garden\x1b shed"
    assert main([*change, "--data", '{"title": "Shed"}']) == 0
    assert main(arguments) == 0
    assert read_title() == "Shed"


def test_a_thread_with_another_conversation_stops_no_other(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*IMPORT, "--tenant", "local", "--from", "messages"]
    assert main([*arguments, write_history(folder / "first.jsonl", a=led(2))]) == 0
    other = [{**one, "content": f"Bee {n}."} for n, one in enumerate(led(2))]
    history = write_history(folder / "second.jsonl", a=other, b=led(2))
    capsys.readouterr()
    assert main([*arguments, history]) == 5
    out = capsys.readouterr().out
    assert "imported: 1 thread with 4 messages" in out
    assert "refused: 1 thread\n  a: the thread holds another conversation" in out


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_ctrl_c_leaves_whole_threads(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """It comes at the second thread's commit. A second run imports the rest, and nothing twice."""
    commit, moments = Committer.commit, iter(("", moment, ""))

    async def commit_under_ctrl_c(*turn: Any, **named: Any) -> Any:
        now = next(moments)
        if now == "before":
            signal.raise_signal(signal.SIGINT)
        if now == "during":
            asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
        committed = await commit(*turn, **named)
        if now == "after":
            signal.raise_signal(signal.SIGINT)
        return committed

    def count_messages(thread: str) -> int:
        capsys.readouterr()
        if main(["messages", thread, "--json", "--config", "om.yaml"]) == 4:
            return 0
        return len(json.loads(capsys.readouterr().out)["items"])

    history = write_history(folder / "old.jsonl", a=led(3), b=led(3), c=led(3))
    arguments = [*IMPORT, "--tenant", "local", "--from", "messages", history]
    with monkeypatch.context() as hand, heed_ctrl_c():
        hand.setattr(Committer, "commit", commit_under_ctrl_c)
        assert main(arguments) == 130
    assert capsys.readouterr().err == ""
    assert (count_messages("a"), count_messages("c")) == (6, 0)
    assert count_messages("b") in (0, 6)
    assert main(arguments) == 0
    assert [count_messages(thread) for thread in "abc"] == [6, 6, 6]
    capsys.readouterr()
    assert main(arguments) == 0
    assert "imported: 0 threads with 0 messages\nalready there: 3" in capsys.readouterr().out


def test_what_is_left_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Conversations before --since, and those that cannot be named or say nothing."""
    old = led(1)
    history = write_history(
        folder / "old.jsonl", **{"a\x1b[1m": old, "old": old, "new": led(9), "empty": []}
    )
    arguments = [*IMPORT, "--tenant", "local", "--from", "messages"]
    assert main([*arguments, history, "--since", "2026-01-09"]) == 0
    out = capsys.readouterr().out
    assert "imported: 1 thread with 18 messages" in out
    assert "older than --since: 1" in out
    assert "without messages or a name: 2" in out


def test_no_time_is_made_up(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A conversation without any times gets the time of the import. Messages before the first known
    one have that one."""
    untimed = [{k: v for k, v in one.items() if k != "created_at"} for one in led(2)]
    partly = [*untimed[:2], *led(2)[2:]]
    history = write_history(folder / "old.jsonl", untimed=untimed, partly=partly)
    assert main([*IMPORT, "--tenant", "local", "--from", "messages", history]) == 0

    def list_times(thread: str) -> list[float]:
        capsys.readouterr()
        assert main(["messages", thread, "--json", "--config", "om.yaml"]) == 0
        return [item["at"] for item in json.loads(capsys.readouterr().out)["items"]]

    assert all(abs(time.time() - at) < 600 for at in list_times("untimed"))
    assert list_times("partly") == [JAN_2 + DAY_S] * 3 + [JAN_2 + DAY_S + 60]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("--from", "messages", "absent.jsonl", "--tenant", "local"), 4, "absent.jsonl"),
        (("--from", "chaos", "old.jsonl", "--tenant", "local"), 2, "no reader is named chaos"),
        (("--from", "chatgpt", "old.jsonl", "--tenant", "local"), 2, "no conversation of chatgpt"),
        (("--from", "messages", "old.jsonl"), 2, "send one message through the proxy first"),
        (("--from", "messages", "old.jsonl", "--tenant", "nobody"), 4, "nobody"),
        (("--from", "messages", "old.jsonl", "--resource", " "), 2, "--resource"),
        (("old.jsonl", "old.jsonl"), 2, "--from"),
    ],
)
def test_wrong_use(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    status: int,
    words: str,
) -> None:
    write_history(folder / "old.jsonl", a=led(1))
    assert main([*IMPORT, *arguments]) == status
    assert words in capsys.readouterr().err


def test_keys_name_the_owner(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also of a store that nobody has used yet."""
    Path("om.yaml").write_text(
        "storage: {url: sqlite:///om.db}\nauth: {keys: [{key: sk-1234567890abcdef, tenant: docks}]}\n"
    )
    history = write_history(folder / "old.jsonl", a=led(1))
    assert main([*IMPORT, "--from", "messages", history]) == 0
    capsys.readouterr()
    assert main(["threads", "a", "--tenant", "docks", "--config", "om.yaml"]) == 0


async def test_notes_at_once_are_agreed_to(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """First the tokens and the dollars, then the question, then the notes."""
    models = ScriptedServer()
    history = write_history(folder / "old.jsonl", crates=led(12))
    arguments = (*IMPORT, "--tenant", "local", "--from", "messages", history, "--notes", "now")
    assert await run_command(*arguments) == 2
    assert "memory.model is auto or inherit" in capsys.readouterr().err
    async with serve_on_loopback(models, lifespan="off") as upstream:
        write_settings(
            f"""
            storage: {{url: "sqlite:///om.db"}}
            upstream: [{{name: scripted, base_url: "{upstream}/v1"}}]
            memory: {{model: openai/scripted-observer, api_base: "{upstream}/v1", api_key: sk-observer, {SMALL}}}
            """
        )
        assert await run_command(*arguments) == 2
        captured = capsys.readouterr()
        assert "add --yes" in captured.err
        assert "would be imported: 1 thread with 24 messages, about 2 " in captured.out
        assert "notes on all of them: at unknown price" in captured.out
        assert "om.db" not in os.listdir()
        assert await run_command(*arguments, "--yes") == 0
        assert models.requests_to(OBSERVER)
    assert "imported: 1 thread with 24 messages" in capsys.readouterr().out
    assert await asyncio.to_thread(main, ["threads", "crates", "--config", "om.yaml"]) == 0
    capsys.readouterr()
    write_settings("storage: {url: sqlite:///om.db}\nmemory: {model: gpt-4o-mini, api_key: sk-x}\n")
    assert await run_command(*arguments, "--dry-run") == 0
    assert re.search(r"notes on all of them: about \$0\.0\d", capsys.readouterr().out)
