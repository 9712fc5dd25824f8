"""`scripts/bench` side by side: what follows from rows made by hand, in which order what is
measured, and whose ports they are."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.bench import beside
from tests.bench.beside import CELLS, FEW, LONGER, ONCE, Step, busy, family, measured, plan, run
from tests.bench.figures import (
    ANY,
    CORE,
    CPU,
    EVENT,
    EVENT_OF_MANY,
    FIRST,
    LATE,
    P50,
    RATE,
    START,
    WORKER,
    figures,
    medians,
)
from tests.bench.table import GOALS, Goal, noise, number, table, trouble, verdict
from tests.bench.table import beside as compared

ROOT = Path(__file__).parents[1]


def row(target: str, cell: str, **fields: Any) -> dict[str, Any]:
    """As run.py writes it."""
    usual = {
        "n": 100,
        "errors": 0,
        "non200": 0,
        "rps": 1000.0,
        "p50": 1000,
        "ttfb50": 900,
        "cpu_us": 500.0,
    }
    more = {"bytes": 17_500, "reads": 100, "idle_mb": 50.0, "first_200_s": 0.5}
    return {"target": target, "cell": cell, **usual, **more, **fields}


# ── figures ───────────────────────────────────────────────────────────────────────────────────────


def test_median_of_rounds() -> None:
    """Each field by itself; what is measured once a start, over all cells."""
    rows = [
        row("nginx", "1k_n:1", p50=p50, cpu_us=cpu)
        for p50, cpu in ((300, 9.0), (100, 7.0), (200, 8.0))
    ]
    found = medians([*rows, row("nginx", "1k_n:16", first_200_s=3.0)])
    assert (found["nginx", "1k_n:1"]["p50"], found["nginx", "1k_n:1"]["cpu_us"]) == (200, 8.0)
    assert START.read(found, "nginx", ANY) == 0.5


def test_no_answers_are_no_figure() -> None:
    """A cell without one answer has a p50 of nothing, not of 0 ms."""
    rows = [row("litellm", "1m_n:1", n=0, rps=0.0, p50=0, cpu_us=None)]
    assert P50.read(medians(rows), "litellm", "1m_n:1") is None
    assert list(trouble(rows)) == ["litellm 1m_n:1: no answer in time, no figure"]


def test_errors_are_told() -> None:
    """Fast refusals are no fast answers."""
    assert list(
        trouble([row("nginx", "1k_n:1", errors=1, non200=20), row("nginx", "1k_n:16")])
    ) == ["nginx 1k_n:1: 1 errors and 20 answers other than 200"]


def test_direct_has_no_cost() -> None:
    """Without a proxy, what is counted is the fake upstream's: its CPU and memory say nothing of a
    target."""
    found = medians([row("direct", "1k_n:16")])
    assert RATE.read(found, "direct", "1k_n:16") == 1000
    assert [kind.read(found, "direct", "1k_n:16") for kind in (CPU, CORE)] == [None, None]
    assert START.read(found, "direct", ANY) is None


def test_full_core() -> None:
    """Requests a second if all the core were the target's, measured ones beside it."""
    found = medians([row("om_raw", "1k_n:16", cpu_us=250.0, rps=1500.0)])
    assert CORE.read(found, "om_raw", "1k_n:16") == 4000
    assert RATE.read(found, "om_raw", "1k_n:16") == 1500


def test_cpu_of_an_event() -> None:
    """16 streams of 50 ms are 320 a second, though only 256 were counted whole; 2 750 µs each, 100
    of them the request's."""
    stream = row("om_raw", "sse1000:16", rps=256.0, p50=50_000, cpu_us=2750 * 320 / 256)
    found = medians([stream, row("om_raw", "1k_n:16", cpu_us=100.0)])
    assert EVENT.read(found, "om_raw", "sse1000:16") == pytest.approx(50.0)


def test_cpu_of_an_event_needs_the_request() -> None:
    """Without the cell that says what a request costs there is no share of events."""
    assert EVENT.read(medians([row("om_raw", "sse1000:16")]), "om_raw", "sse1000:16") is None


def test_many_streams() -> None:
    """202 times 33 ms are 6.666 s; 750 streams of 7.5 s are 20 300 events a second."""
    rows = [row("om_raw", "sse33000:750", p50=7_500_000, rps=100.0, cpu_us=5000.0)]
    found = medians(rows)
    assert LATE.read(found, "om_raw", "sse33000:750") == pytest.approx(12.5, rel=1e-2)
    assert EVENT_OF_MANY.read(found, "om_raw", "sse33000:750") == pytest.approx(24.63, rel=1e-3)


def test_memory_of_a_further_worker() -> None:
    """What two of them have in common counts once."""
    rows = [row(f"om_raw_workers{n}", "1k_n:1", idle_mb=100.0 + 20 * n) for n in (2, 3)]
    assert WORKER.read(medians(rows), "om_raw", ANY) == 20.0


def test_merged_events_are_no_figure() -> None:
    """Five events a read cost less than one by one: a starved machine would reach the goal."""
    starved = row("om_raw", "sse1000:16", bytes=80_000)
    found = medians([starved, row("om_raw", "1k_n:16", bytes=80_000)])
    assert EVENT.read(found, "om_raw", "sse1000:16") is None
    assert FIRST.read(found, "om_raw", "sse1000:16") == 0.9
    assert [
        line.partition(":16")[0]
        for line in trouble([starved, row("om_raw", "1k_n:16", bytes=80_000)])
    ] == ["om_raw sse1000"]


@pytest.mark.parametrize(
    ("cell", "kinds"),
    [
        ("1k_n:1", [P50, CPU]),
        ("1k_n:64", [RATE, CORE, CPU]),
        ("sse1000:1", [FIRST]),
        ("sse1000:16", [FIRST, EVENT]),
        ("sse33000:750", [LATE, EVENT_OF_MANY]),
        ("growpaced:1", [FIRST, P50]),
    ],
)
def test_figures_of_a_cell(cell: str, kinds: Sequence[Any]) -> None:
    """How long one waits, how much many get, and what it costs."""
    assert [kind for place, kind in figures([cell]) if place == cell] == kinds


# ── the table ─────────────────────────────────────────────────────────────────────────────────────


def test_beside_others() -> None:
    """Above no proxy, above the floor, and as a multiple."""
    rows = [
        row(t, "1k_n:1", p50=us)
        for t, us in (("direct", 20), ("floor_aiohttp", 300), ("litellm", 12_000))
    ]
    assert compared(
        medians([*rows, row("om_raw", "1k_n:1", p50=600)]), "om_raw", "1k_n:1", P50
    ) == {
        "value": 0.6,
        "above direct": pytest.approx(0.58),
        "above floor": pytest.approx(0.3),
        "× floor": pytest.approx(2.0),
        "× litellm": pytest.approx(0.05),
    }


def test_rates_do_not_add() -> None:
    """Requests a second have a ratio and no difference."""
    rows = [
        row(t, "1k_n:16", rps=rps)
        for t, rps in (("direct", 9e4), ("floor_aiohttp", 8e3), ("om_raw", 4e3))
    ]
    found = compared(medians(rows), "om_raw", "1k_n:16", RATE)
    assert found == {
        "value": 4e3,
        "above direct": None,
        "above floor": None,
        "× floor": 0.5,
        "× litellm": None,
    }


@pytest.mark.parametrize(
    ("goal", "value", "said"),
    [
        (Goal("value", 60), 60.0, "reached"),
        (Goal("value", 60), 60.1, "MISSED"),
        (Goal("value", 4000, least=True), 4000.0, "reached"),
        (Goal("value", 4000, least=True), 3999.0, "MISSED"),
        (Goal("value", 60), None, "unknown"),
    ],
)
def test_verdict(goal: Goal, value: float | None, said: str) -> None:
    """What was not measured is neither reached nor missed."""
    assert verdict(goal, {"value": value}) == said


def test_every_goal_has_its_line() -> None:
    """A usual run holds every goal's cell and figure; a goal nobody sees is none."""
    assert set(GOALS) <= set(figures(CELLS.split(",")))


def lines(
    rows: Sequence[dict[str, Any]], targets: Sequence[str], cells: Sequence[str]
) -> list[list[str]]:
    return [line.split() for line in table(rows, targets, cells).splitlines()]


def test_table() -> None:
    """A line a figure; where there are goals, one for each goal and each of the two that are held
    to it."""
    rows = [
        *(row(t, "1k_n:16", rps=rps) for t, rps in (("floor_aiohttp", 8000.0), ("litellm", 90.0))),
        *(row(t, "1k_n:16", rps=rps) for t, rps in (("om_raw", 4050.0), ("om_applied", 3000.0))),
    ]
    said = lines(rows, ("floor_aiohttp", "om_raw", "om_applied", "litellm"), ["1k_n:16"])
    assert said[2:6] == [
        [
            "1k_n:16",
            "requests/s",
            "8000",
            "4050",
            "3000",
            "90.0",
            "om_raw",
            "-",
            "-",
            "0.506",
            "45.0",
            "≥",
            "4000",
            "reached",
        ],
        ["≥", "45", "×", "litellm", "reached"],
        ["om_applied", "-", "-", "0.375", "33.3", "≥", "4000", "MISSED"],
        ["≥", "45", "×", "litellm", "MISSED"],
    ]
    assert said[6] == [
        "1k_n:16",
        "requests/s,",
        "full",
        "core",
        "2000",
        "2000",
        "2000",
        "2000",
        "om_raw",
        "-",
        "-",
        "1.00",
        "1.00",
    ]


def test_table_without_memory() -> None:
    """Nobody to hold to the goals: the figures alone."""
    said = lines([row("nginx", "1k_n:1")], ["nginx"], ["1k_n:1"])
    assert said[2:4] == [["1k_n:1", "p50,", "ms", "1.00"], ["1k_n:1", "CPU", "µs/request", "500"]]


def test_columns_stand_below_each_other() -> None:
    """A value ends where its heading ends."""
    text = table(
        [row("nginx", "1k_n:1", p50=123_456)], ["direct", "nginx"], ["1k_n:1"]
    ).splitlines()
    assert text[1].index("nginx") + len("nginx") == text[2].index("123") + len("123")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "-"),
        (0.0154, "0.015"),
        (0.9996, "1.00"),
        (9.996, "10.0"),
        (99.96, "100"),
        (-1.925, "-1.93"),
    ],
)
def test_number(value: float | None, said: str) -> None:
    """Three figures, and no more than three places."""
    assert number(value) == said


def test_noise() -> None:
    """The spread of each cell's rounds: the middle one and the worst."""
    rows = [
        row("floor_aiohttp", cell, p50=p50)
        for cell, p50 in (("a:1", 100), ("b:1", 100), ("a:1", 110), ("b:1", 150))
    ]
    assert noise([*rows, row("nginx", "a:1", p50=900)], "floor_aiohttp") == (
        "Rounds of floor_aiohttp lie apart: p50 30%, at most 50% (b:1); CPU 0%, at most 0% (a:1)"
    )


def test_noise_of_one_round() -> None:
    """One round knows nothing of noise, and says so."""
    assert noise([row("nginx", "a:1")], "nginx").endswith("unknown, it was measured once")


# ── what is measured ──────────────────────────────────────────────────────────────────────────────


def test_plan_goes_round_by_round() -> None:
    """Targets take turns; LiteLLM is measured once, longer and in fewer cells, and so is the cell
    that takes longest, alone."""
    usual = ",".join(cell for cell in CELLS.split(",") if cell != ONCE)
    assert list(plan(["floor_aiohttp", "om_raw", "litellm"], None, 2, 0.5)) == [
        Step(1, "floor_aiohttp", usual, 0.5),
        Step(1, "floor_aiohttp", ONCE, 0.5),
        Step(1, "om_raw", usual, 0.5),
        Step(1, "om_raw", ONCE, 0.5),
        Step(1, "litellm", FEW, 0.5 * LONGER),
        Step(2, "floor_aiohttp", usual, 0.5),
        Step(2, "om_raw", usual, 0.5),
    ]


def test_floor_closes_a_single_round() -> None:
    """One round measures the floor twice, or nobody could tell noise from news."""
    assert [step.target for step in plan(["floor_aiohttp", "om_raw"], "1k_n:1", 1, 1)] == [
        "floor_aiohttp",
        "om_raw",
        "floor_aiohttp",
    ]


def test_chosen_cells_are_measured() -> None:
    """Cells somebody asks for are everybody's, LiteLLM's too."""
    assert [step.cells for step in plan(["om_raw", "litellm"], "1m_n:16", 1, 1)] == [
        "1m_n:16",
        "1m_n:16",
    ]


def test_missing_target_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is not installed is left out, and said to be."""
    monkeypatch.setitem(beside.COMMANDS, "litellm", "/nowhere/litellm")
    assert list(beside.present(["om_raw", "litellm"])) == ["om_raw"]
    assert "left out: litellm" in capsys.readouterr().out


# ── one run ───────────────────────────────────────────────────────────────────────────────────────


def test_busy_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another run's upstream listens, its upstream would be measured: nothing is."""
    monkeypatch.setattr(beside, "GRACE", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setattr(beside, "PORTS", (port,))
        assert busy([port]) == [port]
        with pytest.raises(SystemExit, match=rf"in use by another run.*\[{port}\]"):
            beside.wait_free()
    assert busy([port]) == []
    beside.wait_free()


def stand_in(folder: Path, text: str) -> Path:
    """In place of run.py: the same arguments."""
    script = folder / "run.py"
    script.write_text(
        f"import pathlib, sys, time\nout = pathlib.Path(sys.argv[sys.argv.index('--out') + 1])\n{text}\n"
    )
    return script


STEP = Step(3, "om_raw", "1k_n:1", 0.5)


def test_rows_of_a_run(tmp_path: Path) -> None:
    """Its rows, each with its round; its arguments are the step's."""
    script = stand_in(
        tmp_path, """out.write_text('{"n": 1}\\n{"n": 2}\\n'); print(sys.argv[1:6])"""
    )
    assert measured(script, STEP, tmp_path) == [{"n": 1, "round": 3}, {"n": 2, "round": 3}]


@pytest.mark.parametrize(
    "text",
    [
        "print('bind: Address already in use', file=sys.stderr)",
        "d = out.parent / 'd'; d.mkdir(); (d / 'om_raw.log').write_text('[Errno 98] address already in use')",
    ],
    ids=["upstream", "target"],
)
def test_port_taken_meanwhile(tmp_path: Path, text: str) -> None:
    """A server that could not start says so and no more: what was measured was another's."""
    script = stand_in(tmp_path, f"""out.write_text('{{"n": 1}}\\n'); {text}""")
    with pytest.raises(SystemExit, match="took a port"):
        measured(script, STEP, tmp_path)


def test_targets_of_a_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Several of one step are one run; the log of each is looked at."""
    text = "d = out.parent / 'd'; d.mkdir(); (d / 'b.log').write_text('no such model'); print(sys.argv[1:3], 'b never answered 200')"
    assert measured(stand_in(tmp_path, text), Step(1, "a b", "1k_n:1", 0.5), tmp_path) == []
    said = capsys.readouterr().out
    assert "['a', 'b']" in said
    assert "no such model" in said


def test_failed_run(tmp_path: Path) -> None:
    """A run that breaks is not a run without figures."""
    with pytest.raises(SystemExit, match=r"run\.py ended with 7"):
        measured(stand_in(tmp_path, "sys.exit(7)"), STEP, tmp_path)


def test_target_that_never_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its log is shown before its folder goes."""
    text = "d = out.parent / 'd'; d.mkdir(); (d / 'om_raw.log').write_text('no such model'); print('om_raw never answered 200')"
    assert measured(stand_in(tmp_path, text), STEP, tmp_path) == []
    assert "no such model" in capsys.readouterr().out


def test_interrupted_run_leaves_nothing(tmp_path: Path) -> None:
    """A target has a session of its own, so that no Ctrl-C reaches it: it is ended by its
    number."""
    target = f"subprocess.Popen([{sys.executable!r}, '-c', 'import time; time.sleep(60)'], start_new_session=True)"
    code = f"import subprocess, time; print({target}.pid, flush=True); time.sleep(60)"
    found: list[int] = []

    def interrupted(line: str, **_: object) -> None:
        found.append(int(line))
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beside, "print", interrupted, raising=False)
        with pytest.raises(KeyboardInterrupt):
            run([sys.executable, "-c", code], dict(os.environ))
    end = time.monotonic() + 10
    while alive(found[0]) and time.monotonic() < end:
        time.sleep(0.02)
    assert not alive(found[0])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_family() -> None:
    """A process and its children's children."""
    inner = "import time; print('', flush=True); time.sleep(60)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    with subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        pids = family(process.pid)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    assert len(pids) == 2
    assert pids[0] == process.pid


# ── the script ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("arguments", "program"),
    [
        (["thread", "--turns", "3"], "{root}/tests/bench/long_thread.py --turns 3"),
        (["cost", "--only", "coding"], "-m tests.bench.cost --only coding"),
        (["first-byte", "--rounds", "9"], "-m tests.bench.first_byte --rounds 9"),
        (["capacity", "--threads", "9"], "-m tests.bench.capacity --threads 9"),
        (["resource", "--rounds", "9"], "-m tests.bench.long_resource --rounds 9"),
        (["before", "../old"], "-P -m tests.bench.before --bench {root}/bench ../old"),
        (
            ["om_raw", "--cells", "1k_n:16"],
            "-P -m tests.bench.beside --bench {root}/bench om_raw --cells 1k_n:16",
        ),
        ([], "-P -m tests.bench.beside --bench {root}/bench"),
    ],
)
def test_script(tmp_path: Path, arguments: Sequence[str], program: str) -> None:
    """`thread`, `cost` and `before` are programs of their own; all else is side by side."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "upstream.c").touch()
    tools = tmp_path / ".venv" / "bin"
    tools.mkdir(parents=True)
    for tool in ("python", "om-proxy"):
        (tools / tool).write_text('#!/usr/bin/env bash\necho "$*"\n')
        (tools / tool).chmod(0o755)
    environment = os.environ | {"OM_BENCH": str(tmp_path / "bench")}
    said = subprocess.run(
        [tmp_path / "scripts" / "bench", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == program.format(root=tmp_path)


def test_command(tmp_path: Path) -> None:
    """From a stand-in's rows to the table and the rows' file, run as the script runs it; goals that
    are missed are no failure."""
    rows = [row("om_raw", "1k_n:16", rps=10.0)]
    stand_in(tmp_path, f"out.write_text({json.dumps(rows[0])!r} + '\\n')")
    program = "from pathlib import Path; from tests.bench import beside; beside.PORTS = (); beside.RUN = Path('run.py'); beside.main()"
    arguments: list[str | Path] = [
        "--bench",
        tmp_path,
        "om_raw",
        "--cells",
        "1k_n:16",
        "--out",
        tmp_path / "rows.jsonl",
    ]
    said = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "MISSED" in said.stdout
    assert json.loads((tmp_path / "rows.jsonl").read_text()) == rows[0] | {"round": 1}
