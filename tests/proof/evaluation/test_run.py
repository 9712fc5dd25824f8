"""A run asks each system the same, tells no system what it must not know, and can be interrupted
anywhere."""

import subprocess
import sys
from itertools import count
from pathlib import Path

import orjson
import pytest

from om_proxy.common.errors import Conflict, UsageError
from om_proxy.proof import stage
from om_proxy.proof.evaluation import models
from om_proxy.proof.evaluation.benchmarks import check_data
from om_proxy.proof.evaluation.call_log import CallLog
from om_proxy.proof.evaluation.report import render_page
from om_proxy.proof.evaluation.run import RunFolder, describe_run, play_run, read_plan
from om_proxy.proof.evaluation.verify import find_fault, play_again
from om_proxy.proof.stage import Stage, open_folder
from tests.proof.evaluation.tiny import HIDDEN, make_plan, write_data

CHILD = "tests.proof.evaluation.killed_run"
ROOT = Path(__file__).parents[3]


async def play(folder: Path, data: Path, actor: str = "script:gold"):
    run, plan = RunFolder(folder), make_plan(data, actor)
    run.create(describe_run(plan))
    return await play_run(run, plan, None, lambda _: None)


@pytest.mark.parametrize(("actor", "right"), [("script:gold", 3), ("script:wrong", 0)])
async def test_an_actor_that_knows_all_is_always_right(tmp_path, actor, right):
    report = await play(tmp_path / "run", write_data(tmp_path), actor)
    assert {row["right"] for row in report["systems"].values()} == {right}
    assert set(report["systems"]) == {"om", "full", "none", "oracle"}
    assert report["planted"]["planted"] == {"right": 3, "wrong": 3, "unsure": 3}


async def test_no_prompt_tells_what_only_the_judge_knows(tmp_path):
    """Names of the data, kinds and answers stand in no prompt of the actor or the memory model."""
    await play(tmp_path / "run", write_data(tmp_path), "script:wrong")
    prompts = [
        orjson.dumps(record.request).decode()
        for record in CallLog(tmp_path / "run")
        if not record.key.step.startswith("judge")
    ]
    assert len(prompts) > 15, "some of them the memory model's"
    assert [word for word in HIDDEN for prompt in prompts if word in prompt] == []


async def test_no_header_and_no_store_tells_it_either(tmp_path, monkeypatch):
    """Names of threads come from the number of the case."""
    named, chat, number = [], Stage.chat, count()

    async def keep_names(stage, thread, messages, **names):
        named.append(f"{thread} {names}")
        return await chat(stage, thread, messages, **names)

    monkeypatch.setattr(Stage, "chat", keep_names)
    monkeypatch.setattr(
        stage, "open_folder", lambda _: open_folder(tmp_path / f"store{next(number)}")
    )
    await play(tmp_path / "run", write_data(tmp_path), "script:wrong")
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("store*/*"))
    assert b"harbour" in stored
    assert b"1-question-1" not in stored, "a question is read, and stored nowhere"
    told = " ".join(named) + stored.decode("utf-8", "replace")
    assert [word for word in HIDDEN if word in told] == []


async def test_memory_answers_from_notes_and_reads_no_session_in_full(tmp_path):
    await play(tmp_path / "run", write_data(tmp_path))
    asked = {
        record.key.step: orjson.dumps(record.request).decode()
        for record in CallLog(tmp_path / "run")
        if record.key.case == "quux1"
    }
    assert "berth 15" in asked["actor:om"]
    assert "berth 15" in asked["actor:full"]
    assert "berth 15" in asked["actor:oracle"]
    assert "harbour, boat 1" in asked["actor:full"]
    assert "harbour, boat 1" not in asked["actor:oracle"]
    assert "berth 15" not in asked["actor:none"]


async def test_a_run_made_twice_asks_the_same(tmp_path):
    data = write_data(tmp_path)
    for name in ("a", "b"):
        await play(tmp_path / name, data)
    first, second = (sorted(r.key for r in CallLog(tmp_path / name)) for name in ("a", "b"))
    assert first == second


async def test_the_log_alone_makes_every_prompt_again(tmp_path):
    data = write_data(tmp_path)
    await play(tmp_path / "run", data)
    folder = RunFolder(tmp_path / "run")
    assert await play_again(folder, make_plan(data)) is None


async def test_memory_calls_whose_answers_were_no_notes_are_counted(tmp_path, monkeypatch):
    """By kind, in the case's row, in the report and on its page; the log alone gives them again."""
    write, left = models.SCRIPTED_ANSWERS["notes"], [2]

    async def write_prose_first(body, gold):
        left[0] -= 1
        return "A word about the weather." if left[0] >= 0 else await write(body, gold)

    monkeypatch.setitem(models.SCRIPTED_ANSWERS, "notes", write_prose_first)
    data = write_data(tmp_path)
    report = await play(tmp_path / "run", data)
    folder = RunFolder(tmp_path / "run")
    assert report["notes"]["refused_calls"] == {"observe": 2}
    counted = [row.get("refused_calls") for row in folder.read_cases()]
    assert counted == [{"observe": 2}, {}, {}, None]
    assert "not usable: 2 to observe." in render_page(report)
    assert find_fault(folder) is None
    assert await play_again(folder, make_plan(data)) is None


def test_a_run_that_is_killed_anywhere_ends_with_the_same_report(tmp_path):
    """Killed at twenty calls in turn, in the middle of a write at every other one, it pays for no
    logged call again, and its report is that of a run in one piece."""
    ended = subprocess.run(
        [sys.executable, "-m", CHILD, str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "20 kills" in ended.stdout


def test_other_data_is_refused(tmp_path):
    data = write_data(tmp_path)
    source = make_plan(data).benchmark.source
    check_data(source, data)
    data.write_bytes(data.read_bytes().replace(b"berth 14", b"berth 15"))
    with pytest.raises(UsageError, match="figures from other data cannot be compared"):
        check_data(source, data)
    with pytest.raises(UsageError, match="is had at nowhere"):
        check_data(source, tmp_path / "missing.json")


async def test_a_run_says_what_it_is_made_of(tmp_path):
    data = write_data(tmp_path)
    plan = make_plan(data)
    folder = RunFolder(tmp_path / "run")
    folder.create(describe_run(plan))
    run = folder.read_run()
    assert (run["questions"], run["all_questions"], run["benchmark"]) == (3, 3, "tiny")
    assert read_plan(run, benchmark=plan.benchmark) == plan
    with pytest.raises(Conflict, match="resume"):
        folder.create(run)
