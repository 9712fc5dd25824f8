"""Let the tenants do what they do, and print who saw what: `scripts/tenancy`. Exit status 1 if
anybody saw what is another's."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from om_proxy.observability.logs import configure_log
from tests.e2e.tenancy.operations import Operations
from tests.e2e.tenancy.world import WORLDS, Findings, owners, world

SINKS = {
    "prompt",
    "response",
    "memory",
    "row of message",
    "row of observation",
    "admin answer",
}  # where canaries must have been to have been looked for


async def lived(name: str, folder: Path, operations: int, seed: int) -> Findings:
    """One world from its first to its last operation."""
    async with world(name, folder) as made:
        await Operations(made, seed).run(operations)
        return made.findings


@contextmanager
def heard(folder: Path) -> Iterator[Path]:
    """All that this process writes to stderr meanwhile, in a file."""
    file, kept = folder / "stderr", os.dup(2)
    with file.open("wb") as out:
        os.dup2(out.fileno(), 2)
    try:
        configure_log("json")
        yield file
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def told(name: str, findings: Findings, took: float) -> str:
    total = sum(findings.operations.values())
    seen = f"{dict(findings.statuses)}; canaries in {dict(findings.sinks)}"
    return f"{name}: {total} operations in {took:.0f} s; {len(findings.wrong)} breaches; {seen}"


def judged(names: Sequence[str], operations: int, seed: int) -> list[str]:
    """What is wrong, after printing what was seen."""
    wrong = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with heard(folder) as log:
            for name in names:
                began = time.perf_counter()
                found = asyncio.run(lived(name, folder, operations // len(names), seed))
                print(told(name, found, time.perf_counter() - began), flush=True)
                wrong += [f"{name}: {what}" for what in found.wrong]
                wrong += [
                    f"{name}: no canary was ever seen in a {sink}"
                    for sink in sorted(SINKS - set(+found.sinks))
                ]
        text = log.read_bytes()
    wrong += [f"the log holds canaries of {sorted(owners(text))}"] if owners(text) else []
    wrong += ["the log holds a credential"] if b"sk-" in text else []
    wrong += [] if b'"turn"' in text else ["nothing was logged: the log was not looked at"]
    return wrong


def main() -> int:
    asked = argparse.ArgumentParser(prog="scripts/tenancy", description=__doc__)
    asked.add_argument("--operations", type=int, default=100_000)
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument(
        "--world", choices=WORLDS, action="append", help="this one alone (again for more)"
    )
    given = asked.parse_args()
    wrong = judged(given.world or list(WORLDS), given.operations, given.seed)
    print(*dict.fromkeys(wrong[:50]), f"{len(wrong)} breaches", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
