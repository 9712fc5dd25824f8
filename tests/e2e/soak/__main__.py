"""A proxy, its model server and its clients, each a process of its own, for a long time:
`scripts/soak`. Exit 1 if anything grows."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson

from om_proxy.common.reasons import Reason
from tests.e2e.bounds.serving import Proxy
from tests.e2e.soak.growth import BOUND, Sample, drop_warm_up, find_growth, fit_line
from tests.support.free_port import free_port

STAGE = 600.0  # seconds that the requests between two samples may take
SETTLES = 20.0  # seconds given to the work after the replies
FAILED = 0.02  # of the requests, at most: one in a hundred is made to
SETTINGS = """
server: {{port: {port}}}
upstream: [{{base_url: "http://127.0.0.1:{models}/v1", layout: blocks}}]
storage: {{url: "sqlite:///{folder}/om.db"}}
telemetry: {{log: "off"}}
memory:
  api_base: "http://127.0.0.1:{models}/v1"
  api_key: sk-observer
  observation: {{model: openai/observer, message_tokens: {observe_at}, buffer_tokens: {buffer}, block_timeout: 2s}}
  reflection: {{model: openai/reflector, observation_tokens: 150}}
"""


@asynccontextmanager
async def beside(module: str, *arguments: object) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process of this folder, talked to by its standard streams; it is gone at the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", f"tests.e2e.soak.{module}", *map(str, arguments),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def line(process: asyncio.subprocess.Process, within: float) -> bytes:
    assert process.stdout is not None
    found = await asyncio.wait_for(process.stdout.readline(), within)
    assert found, "the process has ended"
    return found


async def settled(proxy: Proxy) -> None:
    """Until it rests; work that goes on is sampled as it is."""
    try:
        await asyncio.wait_for(proxy.rests(), SETTLES)
    except TimeoutError:
        print("it does not come to rest", flush=True)


def sample(proxy: Proxy, requests: int) -> Sample:
    place = Path(f"/proc/{proxy.pid}")
    status = dict(
        one.split(":", 1) for one in (place / "status").read_text(encoding="ascii").splitlines()
    )
    resident = int(status["VmRSS"].split()[0]) / 1024
    return Sample(requests, resident, len(os.listdir(place / "fd")), int(status["Threads"]))


async def soaked(
    folder: Path, requests: int, threads: int, every: int
) -> tuple[list[Sample], dict[str, int]]:
    """The samples, and what clients and models tell; a line is printed for each sample."""
    port, samples = free_port(), list[Sample]()
    async with beside("models") as models:
        answering = int(await line(models, 20))
        settings = SETTINGS.format(
            port=port, models=answering, folder=folder, observe_at=1_200, buffer=400
        )
        (folder / "om.yaml").write_text(settings, encoding="utf-8")
        proxy = Proxy(folder / "om.yaml", port)
        await proxy.start()
        try:
            async with beside("clients", port, requests, threads, every) as clients:
                began = time.monotonic()
                for number in range(every, requests + 1, every):
                    told = orjson.loads(await line(clients, STAGE))
                    await settled(proxy)
                    samples.append(sample(proxy, number))
                    print(f"{time.monotonic() - began:6.0f} s {_row(samples[-1])}", flush=True)
                    assert clients.stdin is not None
                    clients.stdin.write(b"on\n")
                await asyncio.wait_for(clients.wait(), 20)
            assert models.stdin is not None
            models.stdin.close()
            told |= {
                f"model: {name}": count
                for name, count in orjson.loads(await line(models, 20)).items()
            }
            if await proxy.terminate() != 0:
                told["proxy: ended badly"] = 1
        finally:
            await proxy.kill()
    return samples, told


def _row(one: Sample) -> str:
    return f"{one.requests:>8} requests {one.resident:8.2f} MiB {one.descriptors:>5} descriptors {one.threads:>4} threads"


def wrong(told: dict[str, int], requests: int) -> list[str]:
    """Why the load was none to grow under, or was not served."""
    left = sum(n for what, n in told.items() if what.startswith("left "))
    failed = requests - left - told.get("200", 0)
    found = [f"{failed} of {requests} requests failed"] if failed > FAILED * requests else []
    worked = ("memory applied", "model: observer", "model: reflector", "model: broken off")
    found += [f"never happened: {what}" for what in worked if not told.get(what)]
    faults = ("late", "proxy: ended badly", Reason.TOOL_PAIRS.value)
    return found + [what for what in faults if told.get(what)]


def main() -> int:
    options = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    options.add_argument("--requests", type=int, default=200_000, help="in all (%(default)s)")
    options.add_argument(
        "--threads", type=int, default=10_000, help="they are spread over (%(default)s)"
    )
    options.add_argument(
        "--every", type=int, default=5_000, help="requests between two samples (%(default)s)"
    )
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        samples, told = asyncio.run(
            soaked(Path(folder), asked.requests, asked.threads, asked.every)
        )
    print(*(f"{what}: {count}" for what, count in sorted(told.items())), sep=", ")
    found = fit_line(drop_warm_up(samples))
    print(
        f"resident memory after warm-up: {found.slope:+.2f} ± {found.error:.2f} MiB per 10⁵ requests (bound {BOUND:g})"
    )
    broken = find_growth(samples) + wrong(told, asked.requests)
    print(*(broken or ["nothing grows"]), sep="\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
