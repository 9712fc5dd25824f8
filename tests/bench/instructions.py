"""Counts the instructions of a request in this checkout and in others, by callgrind.

Time depends on the machine's neighbours, instructions do not: two runs of one checkout differ by
less than 1 %. What they do not tell: waiting, system calls' own time, and the kernel's work.
One server runs at a time, 50 times slower than else; a cell takes a minute.

What runs every few seconds would count 50 times too much. So requests are counted in parts. Of each
part, what an idle server spends in the same time is taken off. The median part is told: a write that
comes every 10 s falls into few of them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tests.bench.loads import list_turns, write_request
from tests.bench.run import Bench
from tests.bench.servers import (
    Running,
    Target,
    describe_target,
    make_known,
    read_reply,
    serve_models,
    serve_target,
    thread_headers,
)
from tests.bench.table import aligned

CELLS = "om_off 1k_n:1,om_raw 1k_n:1,om_applied 1k_n:1,om_raw grow:1,om_raw grow:16,om_applied 1m10k_n:1"
WARM_REQUESTS, COUNTED_REQUESTS = 60, 200
REQUESTS_OF_A_PART = 20  # as many as a thread of real turns has
FEW_REQUESTS, FEW_REQUESTS_OF_A_PART = 8, 2  # of a large body
IDLE_PARTS, IDLE_PART_S = 5, 1.0
LARGE_BODY_BYTES = 1 << 18
REPLY_TIMEOUT_S = 900.0  # for all of them
DUMP_TIMEOUT_S = 60.0
TOTAL_PATTERN = re.compile(r"^(?:totals|summary): (\d+)", re.MULTILINE)


class Span(NamedTuple):
    """What a server has run in a span of time."""

    instructions: int
    seconds: float


def count_request(parts: Sequence[Span], idle: Sequence[Span], requests_of_a_part: int) -> float:
    """Return the instructions of a request: those of the median part, without what the server runs
    while it idles."""
    idle_rate = median(span.instructions / span.seconds for span in idle)
    busy = median(span.instructions - idle_rate * span.seconds for span in parts)
    return busy / requests_of_a_part


def count_cell(bench: Bench, checkout: Path, state: str, cell: str) -> float:
    """Instructions a request, in thousands."""
    name, _, connections = cell.partition(":")
    folder = Path(tempfile.mkdtemp(prefix="callgrind-", dir=bench.folder))
    command = str(checkout / ".venv" / "bin" / "om-proxy")
    os.environ["OM_PROXY"] = command
    target = describe_target(state, folder, bench.shared)
    python = str(checkout / ".venv" / "bin" / "python")
    profile = folder / "callgrind.out"
    valgrind = (
        *("valgrind", "--tool=callgrind", "--instr-atstart=no"),
        f"--callgrind-out-file={profile}",
    )
    target = replace(target, command=(*valgrind, python, *(target.command or ())))
    body_file = bench.body_file("1k_n" if name == "grow" else name)
    body = body_file.read_bytes()
    with (
        serve_models(bench.shared, bench.folder) as upstream,
        serve_target(target, bench.shared, folder, upstream, body) as running,
    ):
        if running is None:
            raise SystemExit(f"scripts/bench: {checkout} never answered; its log is in {folder}")
        return _count(running, name, int(connections), body, profile)


def _count(running: Running, name: str, connections: int, body: bytes, profile: Path) -> float:
    few = len(body) > LARGE_BODY_BYTES
    counted = FEW_REQUESTS if few else COUNTED_REQUESTS
    warm = FEW_REQUESTS // 2 if few else WARM_REQUESTS
    requests = list(_list_requests(running.target, name, connections, warm + counted, body))
    if name != "grow" and running.target.headers:
        make_known(running, name, connections, body)
    control_callgrind(running.pid, "--instr=on")
    spans = SpanCounter(running.pid, profile)
    of_a_part = FEW_REQUESTS_OF_A_PART if few else REQUESTS_OF_A_PART
    parts: list[Span] = []
    play(requests, running.target.port, connections, of_a_part, lambda: parts.append(spans.count()))
    idle = []
    for _ in range(IDLE_PARTS):
        time.sleep(IDLE_PART_S)
        idle.append(spans.count())
    return count_request(parts[warm // of_a_part :], idle, of_a_part) / 1_000


class SpanCounter:
    """Counts the instructions since it was asked before."""

    def __init__(self, pid: int, profile: Path) -> None:
        self._pid = pid
        self._profile = profile
        self._counted_at = time.monotonic()

    def count(self) -> Span:
        instructions = _dump(self._pid, "part", self._profile)
        before, self._counted_at = self._counted_at, time.monotonic()
        return Span(instructions, self._counted_at - before)


def _list_requests(
    target: Target, name: str, connections: int, count: int, body: bytes
) -> Iterator[bytes]:
    headers = thread_headers(target, name)
    if name == "grow":
        many = -(-count // connections)
        turns = list(list_turns(connections, many, target.port, read_reply(body), headers))
        yield from turns[:count]
    else:
        for number in range(count):
            yield write_request(target.port, body, headers, number % connections)


def play(
    requests: Sequence[bytes],
    port: int,
    connections: int,
    requests_of_a_part: int,
    end_part: Callable[[], None],
) -> None:
    """Send the requests part by part, dealt out to the connections, and call `end_part` when all
    replies of a part are there. Raises RuntimeError for a reply that is not 200."""

    async def play_share(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, share: Sequence[bytes]
    ) -> None:
        for request in share:
            writer.write(request)
            await _read_reply(reader)

    async def play_all() -> None:
        async with asyncio.timeout(REPLY_TIMEOUT_S), AsyncExitStack() as opened:
            streams = []
            for _ in range(connections):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                opened.push_async_callback(writer.wait_closed)
                opened.callback(writer.close)
                streams.append((reader, writer))
            for first in range(0, len(requests), requests_of_a_part):
                part = range(first, min(first + requests_of_a_part, len(requests)))
                shares = [
                    [requests[index] for index in part if index % connections == number]
                    for number in range(connections)
                ]
                await asyncio.gather(
                    *(
                        play_share(*stream, share)
                        for stream, share in zip(streams, shares, strict=True)
                    )
                )
                end_part()

    asyncio.run(play_all())


async def _read_reply(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"a request was answered {head[:40]!r}")
    length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
    if length is None:
        raise RuntimeError("the model server's reply has no length")
    await reader.readexactly(int(length[1]))


def control_callgrind(pid: int, *options: str) -> None:
    """Tell a server that runs under callgrind what to do."""
    subprocess.run(
        ["callgrind_control", *options, str(pid)],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=DUMP_TIMEOUT_S,
    )


def _dump(pid: int, label: str, profile: Path) -> int:
    """Instructions since the dump before. Each dump sets the counters back."""
    known = set(profile.parent.glob(f"{profile.name}.*"))
    control_callgrind(pid, f"--dump={label}")
    until = time.monotonic() + DUMP_TIMEOUT_S
    while time.monotonic() < until:
        for new in set(profile.parent.glob(f"{profile.name}.*")) - known:
            if found := TOTAL_PATTERN.search(new.read_text()):
                return int(found[1])
        time.sleep(0.1)
    raise SystemExit(f"scripts/bench: callgrind wrote no dump beside {profile}")


def render_counts(thousand: Sequence[float]) -> list[str]:
    """One cell a checkout: its count, and by which share this checkout, the last, has more."""
    *others, here = thousand
    return [*(f"{count:.1f} ({here / count - 1:+.1%})" for count in others), f"{here:.1f}"]


def main() -> None:
    options = argparse.ArgumentParser(
        prog="scripts/bench instructions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument(
        "checkouts", nargs="*", type=Path, help="folders of other checkouts, each with its .venv"
    )
    options.add_argument(
        "--bench", type=Path, required=True, help="the shared bench folder; scripts/bench names it"
    )
    options.add_argument("--cells", default=CELLS)
    chosen = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    here = Path(__file__).resolve().parents[2]
    checkouts = [*(path.resolve() for path in chosen.checkouts), here]
    lines = [["thousand instructions a request", *(path.name for path in checkouts)]]
    bench = Bench(chosen.bench, Path(tempfile.mkdtemp(prefix="om-bench-")))  # stays: it has logs
    bench.build()
    for state, cell in (pair.split() for pair in chosen.cells.split(",")):
        found = [count_cell(bench, path, state, cell) for path in checkouts]
        lines.append([f"{state} {cell}", *render_counts(found)])
        print("  ".join(lines[-1]), flush=True)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    print("", *(aligned(line, widths) for line in lines), sep="\n")


if __name__ == "__main__":
    main()
