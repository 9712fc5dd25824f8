"""`om-proxy eval` from the command line: a whole run with scripted models, and what it refuses."""

import errno
import json
import os
import signal

import pytest

from om_proxy.cli.entry import main
from om_proxy.common.errors import StorageError
from om_proxy.engine.memory_cache.loading import MemoryLoader
from om_proxy.proof.evaluation.run import BENCHMARKS
from om_proxy.proof.stage import Stage
from tests.proof.evaluation.tiny import make_benchmark, write_data
from tests.support.interrupts import heed_ctrl_c

MODELS = ["--actor", "script:gold", "--memory-model", "script:notes", "--judge", "script:judge"]


@pytest.fixture
def data(tmp_path, monkeypatch):
    """The tiny benchmark in the place of LongMemEval's."""
    path = write_data(tmp_path)
    monkeypatch.setitem(BENCHMARKS, "longmemeval-s", make_benchmark(path))
    monkeypatch.setitem(BENCHMARKS, "tiny", make_benchmark(path))
    return path


def call(*arguments) -> int:
    return main(["eval", *map(str, arguments)])


def test_a_run_is_played_printed_and_verified(data, tmp_path, capsys):
    run = tmp_path / "run"
    options = (*MODELS, "--data", data, "--systems", "om,none", "--sample", "all")
    assert call("run", "longmemeval-s", *options, "--out", run, "--yes") == 0
    out = capsys.readouterr().out
    assert "memory" in out.split("#")[0], "the plan comes first"
    assert "| om | 3 of 3, 100.0% |" in out
    assert call("verify", run) == 0
    assert call("verify", run, "--data", data) == 0
    assert "every prompt was made again" in capsys.readouterr().out
    assert call("report", run) == 0
    capsys.readouterr()
    assert call("report", run, "--json") == 0
    assert json.loads(capsys.readouterr().out)["systems"]["om"]
    assert call("plan", "longmemeval-s", *options, "--json") == 0
    assert {step["step"] for step in json.loads(capsys.readouterr().out)} > {"memory", "judge"}
    assert call("run", "longmemeval-s", *options, "--out", run, "--yes") == 5
    assert "eval resume" in capsys.readouterr().err
    (run / "report.json").write_text("{}")
    assert call("verify", run) == 1


def test_a_run_has_the_rules_of_a_file(data, tmp_path, capsys):
    """They lie over the benchmark's own, stand in the title, and are the run's when it is checked."""
    rules, run = tmp_path / "rules.yaml", tmp_path / "run"
    rules.write_text("memory: {model: gpt-5.4, observation: {message_tokens: 900}}\n")
    options = (*MODELS, "--data", data, "--systems", "om", "--settings", rules)
    assert call("run", "longmemeval-s", *options, "--out", run, "--yes") == 0
    title = (run / "report.md").read_text().splitlines()[0]
    assert (
        'memory {"scope":"resource","observation":{"buffer_on_idle":true,"message_tokens":900}}'
        in title
    )
    assert call("verify", run, "--data", data) == 0
    told = json.loads((run / "run.json").read_text())
    told["settings"] = '{"scope":"resource","observation":{"buffer_on_idle":true}}'
    (run / "run.json").write_text(json.dumps(told))
    assert call("verify", run, "--data", data) == 1, "other rules make other prompts"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ('{"observation":{"prompt":"/etc/passwd"}}', "must be default or condensed"),
        ('"all"', "must be a mapping"),
        ("{", "damaged"),
    ],
)
def test_a_folder_of_others_has_settings_that_no_run_has(data, tmp_path, capsys, settings, words):
    run = tmp_path / "run"
    options = (*MODELS, "--data", data, "--systems", "om")
    assert call("run", "longmemeval-s", *options, "--out", run, "--yes") == 0
    told = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(told | {"settings": settings}))
    assert call("resume", run, "--yes") == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("memory", ["off", "{observation: {prompt: ./mine.txt}}"])
def test_rules_that_no_run_has(data, tmp_path, capsys, monkeypatch, memory):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("Note everything.")
    (tmp_path / "rules.yaml").write_text(f"memory: {memory}\n")
    options = (*MODELS, "--data", data, "--settings", "rules.yaml")
    assert call("plan", "longmemeval-s", *options) == 2
    assert "must be" in capsys.readouterr().err


def test_a_run_stops_at_its_budget_and_goes_on_with_more(data, tmp_path, capsys):
    run = tmp_path / "run"
    options = (*MODELS, "--data", data, "--systems", "none", "--price", "actor=1,2")
    assert call("run", "longmemeval-s", *options, "--out", run, "--yes", "--budget", 0) == 6
    assert "--budget D" in capsys.readouterr().err
    assert call("resume", run, "--budget", 1) == 2, "no terminal to ask on"
    assert "add --yes" in capsys.readouterr().err
    assert call("resume", run, "--budget", 1, "--yes") == 0
    out = capsys.readouterr().out
    assert "actor: script:gold" in out
    assert "| none | 3 of 3" in out


@pytest.mark.parametrize("written", [2, 9, 14])
def test_a_full_disk_ends_a_run_that_goes_on_later(data, tmp_path, capsys, monkeypatch, written):
    """At a call of the memory model, of the actor, or at the row of a case."""
    run, left, fsync = tmp_path / "run", [written], os.fsync

    def fill(file: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(file)

    options = (*MODELS, "--data", data, "--systems", "om,none")
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", fill)
        assert call("run", "longmemeval-s", *options, "--out", run, "--yes") == 3
    assert "No space left on device" in capsys.readouterr().err
    assert call("resume", run, "--yes") == 0
    assert call("verify", run, "--data", data) == 0


@pytest.mark.parametrize("reason", ["mode-off", "storage"])
def test_a_request_without_memory_ends_a_run(data, tmp_path, capsys, monkeypatch, reason):
    """Its answer must not count as one of memory, whether the proxy was off or could not."""
    run, options = tmp_path / "run", (*MODELS, "--data", data, "--systems", "om")
    chat, load = Stage.chat, MemoryLoader.load

    async def chat_past_memory(stage, thread, messages, **named):
        return await chat(stage, thread, messages, **named | {"headers": {"x-om-mode": "off"}})

    async def load_no_question(loader, key, scope=None):
        if "-question-" in key.thread:
            raise StorageError("the disk is gone")
        return await load(loader, key, scope)

    with monkeypatch.context() as fault:
        if reason == "mode-off":
            fault.setattr(Stage, "chat", chat_past_memory)
        else:
            fault.setattr(MemoryLoader, "load", load_no_question)
        assert call("run", "longmemeval-s", *options, "--out", run, "--yes") == 3
    assert f"memory did not serve a request ({reason})" in capsys.readouterr().err
    assert not (run / "cases.jsonl").exists()
    assert call("resume", run, "--yes") == 0
    assert call("verify", run, "--data", data) == 0


def test_ctrl_c_ends_a_run_without_a_trace(data, tmp_path, capsys, monkeypatch):
    run, options = tmp_path / "run", (*MODELS, "--data", data, "--systems", "none")
    with monkeypatch.context() as hand, heed_ctrl_c():
        hand.setattr(os, "fsync", lambda _: signal.raise_signal(signal.SIGINT))
        assert call("run", "longmemeval-s", *options, "--out", run, "--yes") == 130
    assert "Traceback" not in capsys.readouterr().err
    assert call("resume", run, "--yes") == 0


def test_a_folder_of_others_changes_nothing_elsewhere(data, tmp_path, capsys):
    """Neither by a link nor by a name of a system, and it writes no signs to the terminal."""
    run, other = tmp_path / "run", tmp_path / "other.jsonl"
    options = (*MODELS, "--data", data, "--systems", "none")
    assert call("run", "longmemeval-s", *options, "--out", run, "--yes") == 0
    assert run.stat().st_mode & 0o077 == 0
    cases = run / "cases.jsonl"
    told = cases.read_text()
    (run / "hypotheses-x").mkdir()
    cases.write_text(told.replace('"system":"none"', '"system":"x/../../other"'))
    assert call("report", run) == 2
    assert not other.exists()
    cases.write_text(told)
    told = (run / "run.json").read_text()
    (run / "run.json").write_text(told.replace("script:gold", "\\u001b[2J"))
    capsys.readouterr()
    call("report", run)
    assert "\x1b" not in capsys.readouterr().out
    other.write_text("kept")
    (run / "calls-0002.jsonl.gz").symlink_to(other)
    assert call("verify", run) == 2
    assert "holds links" in capsys.readouterr().err
    assert other.read_text() == "kept"


def test_a_plan_asks_no_model(data, capsys):
    options = (*MODELS, "--data", data, "--price", "actor=1,2")
    assert call("plan", "longmemeval-s", *options) == 0
    out = capsys.readouterr().out
    assert "actor:full" in out
    assert "dollars: unknown, use --price" in out


def test_the_files_are_named(capsys):
    assert call("data") == 0
    out = capsys.readouterr().out
    assert "d6f21ea9d60a0d56f34a05b609c79c88a451d2ae03597821ea3d5a9678c3a442" in out
    assert "CC BY-NC 4.0" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--systems", "om,rag"), "--systems rag: there are om, full, none, oracle"),
        (("--price", "actor"), "write actor=0.30,2.50"),
        (("--price", "reader=1,2"), "the steps are actor, memory, judge"),
    ],
)
def test_what_cannot_be_is_named(data, capsys, options, message):
    assert call("plan", "longmemeval-s", *MODELS, "--data", data, *options) == 2
    assert message in capsys.readouterr().err


def test_other_data_is_refused(tmp_path, capsys):
    path = tmp_path / "locomo10.json"
    path.write_text("[]")
    assert call("plan", "locomo", *MODELS, "--data", path) == 2
    assert "cannot be compared" in capsys.readouterr().err
    assert call("verify", tmp_path) == 4
