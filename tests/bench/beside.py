"""Measures proxies side by side, round by round, with run.py and the shared bench folder, and
prints one table of what it found.

Targets: nginx; floor_aiohttp and floor_httpx, which only forward; om_off (no thread, passed
through), om_raw (memory on, history known, nothing rewritten), om_applied (every prompt rewritten);
litellm, portkey and headroom. And direct: no proxy at all, which is what a request costs anyway. What
the cells play: loads.py.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.bench.figures import Row
from tests.bench.loads import MANY_STREAMS
from tests.bench.servers import DISABLED, PORTS, WORKERS, family
from tests.bench.table import FLOOR, LITELLM, PEERS, noise, table, trouble

TARGETS = ("direct", "nginx", FLOOR, "floor_httpx", "om_off", "om_raw", "om_applied", *PEERS)
# not among the usual ones: only their memory and their start are of interest
IDLE_TARGETS = (DISABLED, f"om_raw{WORKERS}2", f"om_raw{WORKERS}3")
CELLS = (
    "1k_n:1,1k_n:16,1k_n:64,grow:1,grow:16,paced:1,growpaced:1,100k_n:1,100k_n:16,1m_n:1,1m_n:16,1m10k_n:1,"
    f"sse1000:1,sse1000:16,{MANY_STREAMS}"
)
ONCE = MANY_STREAMS  # it takes 20 s
# for peers: what they work off spoils the next cell
FEW = "growpaced:1,1k_n:1,grow:1,1k_n:16,grow:16,100k_n:1,1m_n:1,sse1000:1,sse1000:16"
RUN = Path(__file__).with_name("run.py")
# times, for peers: at 0.2 s a request, many of a short cell are cut off at its end and it would look
# slower than it is
LONGER = 4
COMMANDS = {
    "nginx": "nginx",
    LITELLM: os.environ.get("LITELLM", "litellm"),
    "portkey": os.environ.get("PORTKEY", "start-server.js"),
    "headroom": os.environ.get("HEADROOM", "headroom"),
}
GRACE = 5.0  # seconds for the last run's servers to be gone
NOTES = """
  grow, growpaced: real turns, each recognised, counted and committed. All other cells with memory repeat one body: retries.
  paced, growpaced: one request each 50 ms. om_applied plays no turns: at its threshold each other one waits for the memory model.
  of, above, ×: how om_raw (and om_applied, where there is a goal) stands beside direct, floor_aiohttp and litellm.
  requests/s, full core: 1e6 / CPU µs a request, which holds on a busy machine too; goals are held against the measured ones.
  CPU µs/event: (CPU of a stream - CPU of a 1k_n:16 request) / 53 events; streams are counted as concurrency / p50 a second.
  Goals of p50 and first byte are above direct (no proxy); 10 000 messages above floor_aiohttp (pass-through).
  Absolute times do not travel: quote ratios and CPU of one run."""


class Step(NamedTuple):
    """`target`: one, or several that are up at the same time, with blanks between them."""

    round: int
    target: str
    cells: str
    seconds: float


def plan(targets: Sequence[str], cells: str | None, rounds: int, seconds: float) -> Iterator[Step]:
    """Round by round, so that a machine that slows down does so for all. `cells`: None for the
    usual ones."""
    for number in range(1, rounds + 1):
        for target in targets:
            if target not in PEERS:
                yield from _split(Step(number, target, cells or usual(number), seconds))
            elif cells or number == 1:
                yield from _split(Step(number, target, cells or FEW, seconds * LONGER))
    if (
        rounds == 1 and FLOOR in targets and len(targets) > 1
    ):  # or nobody could tell noise from news
        yield Step(2, FLOOR, cells or usual(2), seconds)


def _split(step: Step) -> Iterator[Step]:
    """The cell of many streams stands alone: its model server sends longer ones."""
    others = ",".join(cell for cell in step.cells.split(",") if cell != MANY_STREAMS)
    if others:
        yield step._replace(cells=others)
    if others != step.cells:
        yield step._replace(cells=MANY_STREAMS)


def usual(number: int) -> str:
    return CELLS if number == 1 else ",".join(cell for cell in CELLS.split(",") if cell != ONCE)


def present(targets: Sequence[str]) -> Iterator[str]:
    for target in targets:
        command = COMMANDS.get(target)
        if command and not (shutil.which(command) or Path(command).is_file()):
            print(f"left out: {target}, for there is no {command}")
        else:
            yield target


# ── one run of run.py ─────────────────────────────────────────────────────────────────────────────


def busy(ports: Sequence[int]) -> list[int]:
    """Those that somebody listens on."""
    return [port for port in ports if _listened(port)]


def _listened(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_free() -> None:
    end = time.monotonic() + GRACE
    while taken := busy(PORTS):
        if time.monotonic() > end:
            raise SystemExit(
                f"scripts/bench: in use by another run or program, so nothing is measured: ports {taken}"
            )
        time.sleep(0.1)


def measured(script: Path, step: Step, folder: Path) -> list[Row]:
    """Raises SystemExit where another run took a port meanwhile: that one's servers would have been
    measured."""
    found = folder / "rows.jsonl"
    found.write_text("")
    command = [sys.executable, str(script), *step.target.split(), "--cells", step.cells]
    command += ["--seconds", str(step.seconds), "--out", str(found)]
    said = run(command, os.environ | {"TMPDIR": str(folder)})
    logs = (path for target in step.target.split() for path in folder.glob(f"*/{target}.log"))
    log = "".join(path.read_text(errors="replace") for path in logs)
    if "address already in use" in (said + log).casefold():
        raise SystemExit(
            "scripts/bench: another run took a port meanwhile; what was measured last is thrown away"
        )
    if "never answered" in said:
        print(log[-2000:])  # for the folder goes with its run
    return [json.loads(line) | {"round": step.round} for line in found.read_text().splitlines()]


def run(command: Sequence[str], environment: dict[str, str]) -> str:
    """Passes on what it says. Ends all it started when it is interrupted: targets have sessions of
    their own."""
    said = ""
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                said += line
        except BaseException:
            for pid in family(process.pid):
                with suppress(ProcessLookupError):  # ended meanwhile
                    os.kill(pid, signal.SIGTERM)
            raise
    if process.returncode:
        raise SystemExit(f"scripts/bench: run.py ended with {process.returncode}")
    return said


# ── the command ───────────────────────────────────────────────────────────────────────────────────


def arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(
        prog="scripts/bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"default: {' '.join(TARGETS)}"
    )
    options.add_argument(
        "--bench", type=Path, required=True, help="the shared bench folder; scripts/bench names it"
    )
    options.add_argument(
        "--seconds", type=float, default=1.0, help="a cell; sse10000 needs one, or no stream ends"
    )
    options.add_argument(
        "--rounds", type=int, default=1, help="of which the table shows the medians"
    )
    options.add_argument(
        "--cells", help=f"body:concurrency,…; default: {CELLS}, and fewer for litellm"
    )
    options.add_argument(
        "--out",
        type=Path,
        help="file for the rows, one JSON a line; default: in a temporary folder",
    )
    chosen = options.parse_args()
    known = (*TARGETS, *IDLE_TARGETS)
    if unknown := set(chosen.targets) - set(known):
        options.error(f"no such target: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return chosen


def main() -> None:
    chosen = arguments()
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # as an interrupt: what was started is ended
    targets = list(present(chosen.targets or TARGETS))
    if not targets:
        raise SystemExit("scripts/bench: nothing left to measure")
    wait_free()  # before an earlier run's rows are written over
    out = chosen.out or Path(tempfile.mkdtemp(prefix="om-bench-")) / "rows.jsonl"
    os.environ["OM_BENCH"] = str(chosen.bench)  # run.py's
    rows = measure(list(plan(targets, chosen.cells, chosen.rounds, chosen.seconds)), RUN, out)
    print("", table(rows, targets, (chosen.cells or CELLS).split(",")), NOTES, "", sep="\n")
    remarks = dict.fromkeys(trouble(rows))  # the same in several rounds: once
    for line in (noise(rows, FLOOR if FLOOR in targets else targets[0]), *remarks, f"Rows: {out}"):
        print(f"  {line}")


def measure(steps: Sequence[Step], script: Path, out: Path) -> list[Row]:
    """Each step's rows are written when it is done, so that an interrupted run keeps them."""
    rows: list[Row] = []
    with out.open("w") as file:
        for step in steps:
            wait_free()
            with tempfile.TemporaryDirectory(prefix="om-bench-") as folder:
                Path(folder).chmod(0o755)  # nginx's worker is another user
                new = measured(script, step, Path(folder))
            file.writelines(json.dumps(row) + "\n" for row in new)
            file.flush()
            rows += new
    return rows


if __name__ == "__main__":
    main()
