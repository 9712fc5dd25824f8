"""Measures targets in cells and writes a row of JSON for each: `run.py TARGET… --cells
1k_n:1,grow:16 --seconds 1 --out FILE`.

The fake model server and the load run on one core, a target on another one. Several targets are up
at the same time and take turns cell by cell, forwards and then backwards: a machine that changes
does so for all of them. OM_BENCH names the shared bench folder, whose servers, bodies and
generators are used; OM_PROXY the command that is measured, OM_BEFORE that of targets that end with
@before.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.loads import TURNS_OF_A_THREAD, Load, count_events, read_cell, write_requests
from tests.bench.servers import (
    BEFORE,
    LOAD_CORE,
    Running,
    Target,
    cpu_s,
    describe_target,
    make_known,
    read_reply,
    resident_mb,
    serve_models,
    serve_target,
    thread_headers,
)
from tests.bench.watchers import watched

# in cells of turns: with its threshold each other turn waits for the memory model, and that one is
# a fake
UNMEASURED = "om_applied"


@dataclass(frozen=True, slots=True)
class Bench:
    """The shared bench folder, and one for what is built of it."""

    shared: Path
    folder: Path

    def build(self) -> None:
        sources = {
            "upstream": self.shared,
            "loadgen": self.shared,
            "growgen": self.shared,
            "play": Path(__file__).parent,
        }
        for name, place in sources.items():
            subprocess.run(
                ["gcc", "-O2", "-w", "-o", self.folder / name, place / f"{name}.c"], check=True
            )
        make = [sys.executable, self.shared / "mkbody.py", self.folder / "bodies"]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)

    def body_file(self, name: str) -> Path:
        """A stream's delay between events stands in its body, and is no part of the messages."""
        file = self.folder / "bodies" / f"{name}.json"
        if name.startswith("sse") and not file.exists():
            body = file.with_name("sse1000.json").read_bytes()
            delay = f"sse-delay-us-{name.removeprefix('sse')}".encode()
            file.write_bytes(body.replace(b"sse-delay-us-1000", delay))
        return file


def measure_cell(
    bench: Bench, running: Running, load: Load, seconds: float, tag: str
) -> dict[str, Any] | None:
    """The cell's row; None where the generator gave no figure. `tag`: of turns, so that no run
    meets another one's threads."""
    target, name = running.target, load.cell.partition(":")[0]
    seconds = max(seconds, load.least_s)
    if target.has_threads and load.body:
        body = bench.body_file("sse0" if load.body.startswith("sse") else load.body)
        make_known(running, name, load.connections, body.read_bytes())
    command = generate_with(bench, running, load, seconds, tag)
    with watched(target.port, LOAD_CORE) if is_watched(target) else nullcontext():
        return measure_load(running, load, seconds, command)


def is_watched(target: Target) -> bool:
    """With OM_WATCHED, this checkout's states are watched, and those of the other one are not."""
    return bool(os.environ.get("OM_WATCHED")) and not target.name.endswith(BEFORE)


def measure_load(
    running: Running, load: Load, seconds: float, command: Sequence[str]
) -> dict[str, Any] | None:
    target = running.target
    begun, used = time.monotonic(), cpu_s(running.pid)
    done = subprocess.run(
        ["taskset", "-c", LOAD_CORE, *command],
        capture_output=True,
        text=True,
        timeout=seconds + 60,
        check=False,
    )
    wall, used = time.monotonic() - begun, cpu_s(running.pid) - used
    try:
        row: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        print(
            f"{target.name} {load.cell} no figure: {done.stdout[:200]} {done.stderr[:200]}",
            flush=True,
        )
        return None
    answered = row["total"] if load.plays_turns else row["rps"] * wall
    row = {"ttfb50": row["p50"], "bytes": 0, "reads": 0} | row  # growgen knows no first byte
    more = {
        "cpu_us": round(used / answered * 1e6, 1) if answered else None,
        "rss_mb": resident_mb(running.pid),
    }
    return {
        **row,
        "target": target.name,
        "cell": load.cell,
        **more,
        "idle_mb": running.idle_mb,
        "first_200_s": running.first_200_s,
    }


def generate_with(
    bench: Bench, running: Running, load: Load, seconds: float, tag: str
) -> list[str]:
    """The generator's command."""
    target, port, connections = running.target, str(running.target.port), str(load.connections)
    program = str(bench.folder / load.generator)
    if load.generator == "growgen" and target.headers and not target.has_threads:
        program = str(bench.folder / "play")  # growgen sends no such headers
    elif load.generator == "growgen":
        return [
            program,
            port,
            connections,
            str(seconds),
            str(TURNS_OF_A_THREAD),
            str(int(target.has_threads)),
            tag,
        ]
    headers = thread_headers(
        target, f"{load.cell.partition(':')[0]}{tag if load.plays_turns else ''}"
    )
    body = bench.body_file(load.body or "1k_n")
    if load.generator == "loadgen":
        return [
            program,
            port,
            "/v1/chat/completions",
            connections,
            str(seconds),
            str(body),
            *headers,
        ]
    requests = bench.folder / "requests"
    reply = read_reply(body.read_bytes()) if load.plays_turns else {}
    requests.write_bytes(
        write_requests(load, target.port, seconds, body.read_bytes(), reply, headers)
    )
    return [
        program,
        port,
        connections,
        str(seconds),
        str(load.stagger_us),
        str(load.every_us),
        str(requests),
    ]


def measure_all(
    bench: Bench,
    names: Sequence[str],
    cells: Sequence[Load],
    seconds: float,
    out: Path,
    before: str | None,
) -> None:
    events = count_events(cells[0].cell)  # of a stream, in all of the cells
    with (
        serve_models(bench.shared, bench.folder, events) as upstream,
        ExitStack() as stack,
        out.open("a") as file,
    ):
        body = bench.body_file("1k_n").read_bytes()
        targets = [
            describe_target(name, bench.folder, bench.shared, before=before) for name in names
        ]
        started = [
            stack.enter_context(serve_target(target, bench.shared, bench.folder, upstream, body))
            for target in targets
        ]
        running = [target for target in started if target]
        for number, load in enumerate(cells):
            for one in running if number % 2 == 0 else reversed(running):
                if load.plays_turns and one.target.name.startswith(UNMEASURED):
                    continue
                if row := measure_cell(bench, one, load, seconds, f"t{time.time_ns()}"):
                    file.write(json.dumps(row) + "\n")
                    file.flush()
                    print(_line(row), flush=True)


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['target']:17s} {row['cell']:11s} rps {row['rps']:9.1f}  p50 {row['p50']:8d} us  p99 {row['p99']:8d}  "
        f"first {row['ttfb50']:7d}  cpu/req {row['cpu_us']}  rss {row['rss_mb']}  errors {row['errors']}/{row['non200']}"
    )


def main() -> None:
    options = argparse.ArgumentParser(
        prog="run.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("targets", nargs="+")
    options.add_argument("--cells", required=True)
    options.add_argument("--seconds", type=float, required=True)
    options.add_argument("--out", type=Path, required=True)
    chosen = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="om-bench-"))  # stays: the targets' logs are in it
    folder.chmod(0o777)  # nginx's worker is another user
    bench = Bench(Path(os.environ["OM_BENCH"]), folder)
    bench.build()
    cells = [read_cell(cell) for cell in chosen.cells.split(",")]
    measure_all(
        bench, chosen.targets, cells, chosen.seconds, chosen.out, os.environ.get("OM_BEFORE")
    )


if __name__ == "__main__":
    main()
