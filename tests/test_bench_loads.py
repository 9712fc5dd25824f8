"""What the cells of the speed table send, and the generator that sends it, against a small
server."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from om_proxy.testing.loopback import serve_on_loopback
from tests.bench import before, beside
from tests.bench.loads import TURNS_OF_A_THREAD, Load, read_cell, write_requests
from tests.bench.published import LINES, write_table
from tests.bench.run import Bench, generate_with, measure_cell
from tests.bench.servers import Running, Target

REPLY = {"role": "assistant", "content": "Yes."}


@pytest.mark.parametrize(
    ("cell", "load"),
    [
        ("1k_n:16", Load("1k_n:16", "1k_n", 16, "loadgen")),
        ("grow:16", Load("grow:16", None, 16, "growgen")),
        ("paced:1", Load("paced:1", "1k_n", 1, "play", 50_000, 50_000)),
        ("growpaced:5", Load("growpaced:5", None, 5, "play", 10_000, 50_000)),
        ("sse1000:1", Load("sse1000:1", "sse1000", 1, "play", 50_000, 0, 0.125)),
        ("sse10000:16", Load("sse10000:16", "sse10000", 16, "play", 31_250, 0, 1.25)),
        ("sse33000:750", Load("sse33000:750", "sse33000", 750, "play", 1_333, 0, 16.5)),
    ],
)
def test_load_of_a_cell(cell: str, load: Load) -> None:
    """Streams start within the length of one, or a second, evenly apart; a cell holds whole ones."""
    assert read_cell(cell) == load


@pytest.mark.parametrize("cell", ["1k_n", "1k_n:", "1k_n:0", "grow:x"])
def test_no_cell(cell: str) -> None:
    with pytest.raises(ValueError, match="is no cell"):
        read_cell(cell)


def test_usual_cells_can_be_played() -> None:
    """Real turns and paced requests are measured unless somebody asks for less."""
    for cells in (beside.CELLS, beside.FEW, before.CELLS):
        assert {read_cell(cell).generator for cell in cells.split(",")} == {
            "loadgen",
            "growgen",
            "play",
        }


def split_requests(data: bytes) -> list[tuple[list[str], dict[str, Any]]]:
    """Headers and body of each."""
    found = []
    while data:
        length, _, data = data.partition(b"\n")
        head, _, body = data[: int(length)].partition(b"\r\n\r\n")
        assert f"content-length: {len(body)}" in head.decode()
        found.append((head.decode().split("\r\n"), json.loads(body)))
        data = data[int(length) :]
    return found


def test_turns_go_on() -> None:
    """Each request holds the one before it, the reply and one message more; after so many turns a
    new thread begins."""
    load = read_cell("growpaced:2")
    requests = split_requests(write_requests(load, 1, 2.0, b"", REPLY, ["x-om-thread: a-####"]))
    assert len(requests) >= 2 * 1.3 * 2 / 0.05, "nothing is played twice: that would be a retry"
    for connection in range(2):
        mine = requests[connection::2]
        for (_, earlier), (_, later) in pairwise(mine[:TURNS_OF_A_THREAD]):
            assert later["messages"][: len(earlier["messages"])] == earlier["messages"]
            assert later["messages"][len(earlier["messages"])] == REPLY
            assert len(later["messages"]) == len(earlier["messages"]) + 2
        assert len(mine[TURNS_OF_A_THREAD][1]["messages"]) == 2
    threads = [
        next(line for line in head if line.startswith("x-om-thread")) for head, _ in requests
    ]
    assert len(set(threads[: 2 * TURNS_OF_A_THREAD])) == 2
    assert not set(threads[: 2 * TURNS_OF_A_THREAD]) & set(threads[2 * TURNS_OF_A_THREAD :])


def test_a_body_goes_once_to_each_connection() -> None:
    load = read_cell("sse1000:3")
    requests = split_requests(
        write_requests(load, 1, 1.0, b'{"a": 1}', {}, ["x-om-thread: b-####"])
    )
    assert [body for _, body in requests] == [{"a": 1}] * 3
    assert [line for head, _ in requests for line in head if "om-thread" in line] == [
        f"x-om-thread: b-{n:04}" for n in range(3)
    ]


# ── the generator ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("gcc"):
        pytest.skip("needs gcc, as scripts/bench does")
    program = tmp_path_factory.mktemp("play") / "play"
    source = Path(beside.__file__).with_name("play.c")
    subprocess.run(["gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, source], check=True)
    return program


class Server:
    """Answers 200, in one piece or as a stream; keeps whose request came when."""

    def __init__(self, *, stream: bool, status: int = 200) -> None:
        self.threads: list[str] = []
        self._stream, self._status = stream, status

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        self.threads.append(dict(scope["headers"])[b"x-om-thread"].decode())
        headers = [] if self._stream else [(b"content-length", b"6")]
        await send({"type": "http.response.start", "status": self._status, "headers": headers})
        for part in (b"one", b"two") if self._stream else (b"onetwo",):
            await send({"type": "http.response.body", "body": part, "more_body": self._stream})
        if self._stream:
            await send({"type": "http.response.body", "body": b""})


async def played(
    play: Path, server: Server, tmp_path: Path, load: Load, seconds: float
) -> dict[str, Any]:
    async with serve_on_loopback(server, lifespan="off") as base:
        port = int(base.rpartition(":")[2])
        requests = tmp_path / "requests"
        requests.write_bytes(
            write_requests(load, port, seconds, b"{}", REPLY, ["x-om-thread: t-####"])
        )
        arguments = [port, load.connections, seconds, load.stagger_us, load.every_us, requests]
        process = await asyncio.create_subprocess_exec(
            play, *map(str, arguments), stdout=asyncio.subprocess.PIPE
        )
        said, _ = await process.communicate()
    assert process.returncode == 0
    found: dict[str, Any] = json.loads(said)
    return found


@pytest.mark.parametrize("stream", [False, True])
async def test_answers_are_counted(play: Path, tmp_path: Path, stream: bool) -> None:
    """Whole ones and chunked ones; those of the warm-up count in the total alone."""
    server = Server(stream=stream)
    row = await played(play, server, tmp_path, Load("x", "x", 3, "play", 1_000), 2.0)
    assert row["errors"] == row["non200"] == 0
    assert 0 < row["n"] < row["total"] <= len(server.threads) <= row["total"] + 3
    assert row["bytes"] >= 6 * row["total"]
    assert row["reads"] >= row["total"]
    assert 0 < row["ttfb50"] <= row["p50"] <= row["p99"] <= row["max"]
    assert set(server.threads) == {"t-0000", "t-0001", "t-0002"}


async def test_refusals_are_no_answers(play: Path, tmp_path: Path) -> None:
    row = await played(
        play, Server(stream=False, status=503), tmp_path, Load("x", "x", 1, "play", 0, 20_000), 2.0
    )
    assert row["n"] == 0
    assert row["non200"] == row["total"] > 0


async def test_pace_is_never_exceeded(play: Path, tmp_path: Path) -> None:
    """One request each 50 ms: in 2.3 s at most 47, however fast the answers are; each is a turn of
    its own."""
    server = Server(stream=False)
    row = await played(play, server, tmp_path, read_cell("growpaced:1"), 2.0)
    assert 1 <= row["total"] <= 47
    assert server.threads == sorted(server.threads)
    assert set(server.threads) <= {"t-0000", "t-0001", "t-0002"}


async def test_connections_start_in_turn(play: Path, tmp_path: Path) -> None:
    server = Server(stream=True)
    await played(play, server, tmp_path, Load("x", "x", 3, "play", 150_000), 2.0)
    assert list(dict.fromkeys(server.threads)) == ["t-0000", "t-0001", "t-0002"]


# ── a row ─────────────────────────────────────────────────────────────────────────────────────────


def stand_in(folder: Path, name: str, said: str) -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\necho '{said}'\n")
    program.chmod(0o755)


RUNNING = Running(
    Target("om_raw", ("om-proxy",), 9100, ("x-om-thread: bench-####",)), os.getpid(), 0.5, 40.0
)


def test_row_of_turns(tmp_path: Path) -> None:
    """growgen counts all answers and knows no first byte: the last one stands for it."""
    if not shutil.which("taskset"):
        pytest.skip("needs taskset, as scripts/bench does")
    stand_in(
        tmp_path,
        "growgen",
        '{"n": 5, "total": 9, "errors": 0, "non200": 0, "rps": 10.0, "p50": 70, "p99": 80}',
    )
    row = measure_cell(Bench(tmp_path, tmp_path), RUNNING, read_cell("grow:1"), 0.5, "t1")
    assert row is not None
    assert (row["target"], row["cell"], row["ttfb50"], row["reads"]) == ("om_raw", "grow:1", 70, 0)
    assert (row["first_200_s"], row["idle_mb"]) == (0.5, 40.0)
    assert row["cpu_us"] >= 0
    assert row["rss_mb"] > 1


def test_generator_without_a_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not shutil.which("taskset"):
        pytest.skip("needs taskset, as scripts/bench does")
    stand_in(tmp_path, "growgen", "connect: refused")
    assert measure_cell(Bench(tmp_path, tmp_path), RUNNING, read_cell("grow:1"), 0.5, "t1") is None
    assert "connect: refused" in capsys.readouterr().out


def test_commands_of_generators(tmp_path: Path) -> None:
    """Turns get threads only where the target has memory; each cell's threads are its own."""
    bench = Bench(tmp_path, tmp_path)
    (tmp_path / "bodies").mkdir()
    bench.body_file("1k_n").write_bytes(b'{"a": 1}')
    plain = replace(RUNNING, target=replace(RUNNING.target, headers=()))
    assert generate_with(bench, RUNNING, read_cell("grow:4"), 2.0, "t1")[1:] == [
        "9100",
        "4",
        "2.0",
        "20",
        "1",
        "t1",
    ]
    assert generate_with(bench, plain, read_cell("grow:4"), 2.0, "t1")[-2:] == ["0", "t1"]
    assert (
        generate_with(bench, RUNNING, read_cell("1k_n:4"), 2.0, "t1")[-1]
        == "x-om-thread: bench-1k_n-####"
    )
    portkey = replace(plain, target=replace(RUNNING.target, headers=("x-portkey-provider: o",)))
    (tmp_path / "bodies" / "sse1000.json").write_bytes(b'{"user": "sse-delay-us-1000"}')
    command = generate_with(bench, portkey, read_cell("sse33000:2"), 0.1, "t1")
    assert b"sse-delay-us-33000" in Path(command[-1]).read_bytes()
    command = generate_with(bench, RUNNING, read_cell("paced:1"), 2.0, "t1")
    assert command[1:6] == ["9100", "1", "2.0", "50000", "50000"]
    assert b"x-om-thread: bench-paced-0000" in Path(command[-1]).read_bytes()


def test_published_table() -> None:
    """Every figure of docs/speed.md has its line; what was not measured is a dash."""
    usual = {
        "n": 9,
        "errors": 0,
        "non200": 0,
        "rps": 640.0,
        "p50": 2200,
        "ttfb50": 9,
        "cpu_us": 480.0,
        "bytes": 0,
        "reads": 1,
    }
    rows = [
        {**usual, "target": target, "cell": cell, "rps": rps, "idle_mb": 61.0, "first_200_s": 0.5}
        for cell in ("grow:1", "grow:16")
        for target, rps in (("om_raw", 640.0), ("floor_aiohttp", 1280.0))
    ]
    lines = list(write_table(rows))
    turns = "| **real turns**, 16 at once, requests/s, × floor (1280) | 1.00 | - | 0.500 | - | - | - | - |"
    assert turns in lines
    assert "| start to five answers, s | 0.500 | - | 0.500 | - | - | - | - |" in lines
    assert len({line.count("|") for line in lines}) == 1
    assert {cell for _, cell, *_ in LINES} - {""} <= set(beside.CELLS.split(","))
