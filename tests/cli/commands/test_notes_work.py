"""`om-proxy notes observe`, `reflect` and `activate` have memory work done now."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import orjson
import pytest

from om_proxy.cli import main
from om_proxy.memory.model import Key
from om_proxy.testing.scripted import OBSERVER
from tests.cli.command_line import run_om_proxy
from tests.cli.stored_memory import CONFIG, converse, read_last_prompt, run_server, store_thread
from tests.e2e.running import Running

OPTIONS = ("--config", "om.yaml")


async def run_command(
    run: Running, folder: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run a command whose memory model is the server's scripted one."""
    models = run.app._watched.current.upstream[0].base_url
    model = f'memory: {{model: openai/{OBSERVER}, api_base: "{models}", api_key: k, '
    (folder / "om.yaml").write_text(CONFIG.replace("memory: {", model))
    return await asyncio.to_thread(run_om_proxy, *arguments, *OPTIONS, cwd=folder)


async def test_messages_below_the_threshold_are_observed(tmp_path: Path) -> None:
    """The chunk becomes active by `activate`, and stands in the running server's next prompt. What
    the observer cost is in the figures."""
    async with run_server(tmp_path) as run:
        talk = await converse(run, "t", 1)
        observed = await run_command(run, tmp_path, "notes", "observe", "t")
        assert (observed.returncode, observed.stderr) == (0, "")
        assert observed.stdout.startswith("made 1 note\n")
        assert "User said: Crate 0 weighs" in observed.stdout
        again = await run_command(run, tmp_path, "notes", "observe", "t")
        assert again.returncode == 4
        assert "is observed" in again.stderr
        activated = await run_command(run, tmp_path, "notes", "activate", "t")
        assert activated.stdout.startswith("1 chunk became active: ")
        await talk.say("And now?")
        assert "User said: Crate 0 weighs" in read_last_prompt(run)
        stats = await run_command(run, tmp_path, "stats", "--by", "model", "--json")
        calls = {
            line["model"]: line["ledger"]["memory_calls"]
            for line in orjson.loads(stats.stdout)["items"]
        }
        assert calls[OBSERVER] == 1


async def test_notes_are_condensed_as_a_person_says(tmp_path: Path) -> None:
    """The reflector is asked with the instruction, and its result takes the notes' place."""
    async with run_server(tmp_path) as run:
        await converse(run, "t", 8)
        before = await run.memory()
        assert all(entry.kind == "observation" for entry in before.log.entries)
        reflected = await run_command(
            run, tmp_path, "notes", "reflect", "t", "--instruction", "Keep the weights.", "--json"
        )
        assert reflected.returncode == 0, reflected.stderr
        answer = orjson.loads(reflected.stdout)
        assert answer["is_done"]
        assert [note["kind"] for note in answer["notes"]] == ["reflection"]
        assert (await run.memory()).log.generation == answer["generation"] > before.log.generation
        asked = run.models.requests_to(OBSERVER)[-1]
        assert "Keep the weights." in orjson.dumps(asked.messages).decode()


@pytest.mark.parametrize("command", ["observe", "reflect"])
def test_an_inherited_model_needs_a_credential(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    """The error says what to set; nothing is done."""
    monkeypatch.chdir(tmp_path)
    asyncio.run(store_thread(tmp_path, Key("local", "t", "t")))
    (tmp_path / "om.yaml").write_text(CONFIG.replace("memory: {", "memory: {model: inherit, "))
    assert main(["notes", command, "t", *OPTIONS]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "set memory.model, or upstream[].api_key" in err


def test_a_memory_model_that_cannot_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The status is 1, and the failure is not counted twice: nothing goes on after the command."""
    monkeypatch.chdir(tmp_path)
    asyncio.run(store_thread(tmp_path, Key("local", "t", "t")))
    model = 'memory: {model: openai/m, api_base: "http://127.0.0.1:9/v1", api_key: k, '
    (tmp_path / "om.yaml").write_text(CONFIG.replace("memory: {", model))
    assert main(["notes", "reflect", "t", *OPTIONS]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("om-proxy: ")
    assert main(["notes", "reflect", "t", "--instruction", "x" * 4001, *OPTIONS]) == 2
