"""Whatever is changed in a run's folder after the run is found."""

import asyncio
import gzip
import shutil
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from om_proxy.common.errors import OmError
from om_proxy.proof.evaluation.call_log import hash_body
from om_proxy.proof.evaluation.run import RunFolder, describe_run, play_run
from om_proxy.proof.evaluation.verify import find_fault, play_again
from tests.proof.evaluation.tiny import make_plan, write_data


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run, and its data."""
    root = tmp_path_factory.mktemp("verified")
    data, folder = write_data(root), RunFolder(root / "run")
    plan = make_plan(data)
    folder.create(describe_run(plan))
    asyncio.run(play_run(folder, plan, None, lambda _: None))
    return folder.path, data


@pytest.fixture
def copy(run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run[0], folder)
    return folder


def change_calls(folder: Path, change) -> None:
    """Write the log anew, with `change` made to the list of its records."""
    (path,) = folder.glob("calls-*")
    with gzip.open(path) as file:
        records = [orjson.loads(line) for line in file]
    change(records)
    path.write_bytes(gzip.compress(b"".join(orjson.dumps(r) + b"\n" for r in records)))


def find(records, step):
    return next(record for record in records if record["step"] == step)


def set_text(record, text):
    record["answer"]["choices"][0]["message"]["content"] = text


def test_a_run_that_nobody_changed_has_no_fault(copy):
    assert find_fault(RunFolder(copy)) is None


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda rs: set_text(find(rs, "actor:om"), "another"), "another answer than the log"),
        (lambda rs: set_text(find(rs, "judge:full"), "no"), "another verdict than the log"),
        (lambda rs: set_text(find(rs, "memory"), "other notes"), "calls_sha256"),
        (lambda rs: find(rs, "actor:om")["request"].update(seed=1), "not the one that it is filed"),
        (lambda rs: find(rs, "actor:none").update(dollars=0.1), "it cost None, and the log says"),
        (lambda rs: rs.remove(find(rs, "actor:oracle")), "the log lacks its call"),
        (lambda rs: rs.remove(find(rs, "memory")), "calls_sha256"),
        (lambda rs: rs.append(find(rs, "memory")), "stands twice"),
    ],
)
def test_a_changed_call_is_found(copy, change, fault):
    change_calls(copy, change)
    assert fault in find_fault(RunFolder(copy))


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        (b'"right":true', b'"right":false', "another verdict"),
        (b'"input_tokens":', b'"input_tokens":1', "other tokens or dollars"),
        (b'"refused_calls":{}', b'"refused_calls":{"observe":1}', "`notes` is not what"),
        (b'"kind":"multi-session"', b'"kind":"temporal"', "report.json"),
    ],
)
def test_a_changed_row_is_found(copy, before, after, fault):
    path = copy / "cases.jsonl"
    path.write_bytes(path.read_bytes().replace(before, after, 1))
    assert fault in find_fault(RunFolder(copy))


def test_a_missing_case_and_a_changed_figure_are_found(copy):
    cases, report = copy / "cases.jsonl", copy / "report.json"
    lines = cases.read_bytes().splitlines(keepends=True)
    cases.write_bytes(b"".join(lines[1:]))
    assert "report.json" in find_fault(RunFolder(copy))
    cases.write_bytes(b"".join(lines))
    report.write_bytes(report.read_bytes().replace(b'"accuracy": 1.0', b'"accuracy": 0.9', 1))
    assert "`systems` is not what the log gives" in find_fault(RunFolder(copy))


def test_a_report_from_before_evidence_was_computed_is_valid(copy):
    path = copy / "report.json"
    report = orjson.loads(path.read_bytes())
    assert report["evidence"]["reached"] == report["evidence"]["sessions"] == 3
    path.write_bytes(orjson.dumps({k: v for k, v in report.items() if k != "evidence"}))
    assert find_fault(RunFolder(copy)) is None
    report["evidence"]["reached"] = 2
    path.write_bytes(orjson.dumps(report))
    assert "`evidence` is not what the log gives" in find_fault(RunFolder(copy))


async def test_a_price_that_was_changed_is_found(copy):
    path = copy / "run.json"
    run = orjson.loads(path.read_bytes())
    price = {"input": 1e-6, "output": 1e-6, "cached_input": 1e-6, "cache_write": 1e-6}
    path.write_bytes(orjson.dumps(run | {"prices": run["prices"] | {"actor": price}}))
    assert "the log says None" in find_fault(RunFolder(copy))


async def test_a_prompt_that_the_proxy_would_not_send_is_found(copy, run):
    """All that a forger can make fit, but for the proxy's own prompts, is found with the data."""

    def forge(records):
        record = find(records, "actor:om")
        record["request"]["messages"][-1]["content"] += " The answer is canary-kestrel."
        record["body_sha256"] = hash_body(record["request"])

    change_calls(copy, forge)
    fault = await play_again(RunFolder(copy), make_plan(run[1]))
    assert fault == "actor:om, case quux0: the log has no call with this prompt"


async def test_a_changed_byte_of_the_data_is_found(copy, run, tmp_path):
    data = tmp_path / "tiny.json"
    data.write_bytes(run[1].read_bytes().replace(b"berth 14", b"berth 41"))
    with pytest.raises(OmError, match="SHA-256"):
        await play_again(RunFolder(copy), replace(make_plan(run[1]), data=data))
