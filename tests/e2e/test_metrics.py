"""`/metrics` of live servers: it counts what was sent, whatever befalls it, and tells no name."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import Fault, ScriptedServer
from tests.e2e.process import Process
from tests.e2e.running import Running, run_with_scripted_models
from tests.e2e.test_ledger import ACTOR, ask, bill
from tests.e2e.test_workers import children
from tests.support.free_port import free_port
from tests.support.long_forms import long_form

TOLD = "The blue crate weighs nine kilos and stands at dock three. " * 6
Samples = dict[tuple[str, ...], float]


async def read_samples(http: httpx.AsyncClient, base: str) -> Samples:
    answer = await http.get(f"{base}/metrics")
    assert answer.status_code == 200, answer.text
    return {
        (sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items()))): (
            sample.value
        )
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def sum_requests(samples: Samples, *labels: str) -> float:
    return sum(
        value
        for name, value in samples.items()
        if name[0] == "om_requests_total" and set(labels) <= set(name)
    )


async def read_until(
    http: httpx.AsyncClient, base: str, is_counted: Callable[[Samples], bool]
) -> Samples:
    """A request counts at its end, which comes after its last byte went out."""
    async with asyncio.timeout(20):
        while not is_counted(samples := await read_samples(http, base)):  # noqa: ASYNC110 - counted in other processes too
            await asyncio.sleep(0.01)
        return samples


async def send(
    run: Running,
    thread: str | None = "t",
    *,
    patience_s: float = 30,
    agent: str = "x",
    **body: Any,
) -> httpx.Response:
    headers = {"authorization": "Bearer sk-a", "user-agent": agent}
    headers |= {"x-om-thread": thread} if thread else {}
    return await run.http.post(
        f"{run.base}/v1/chat/completions",
        json={
            "model": "scripted-actor",
            "messages": [{"role": "user", "content": TOLD}],
            **body,
        },
        headers=headers,
        timeout=patience_s,
    )


async def test_each_request_counts_once(tmp_path: Path) -> None:
    """With memory and without, refused, on a route without memory, and while memory fails."""
    async with run_with_scripted_models(tmp_path) as run:
        await send(run)
        await send(run, stream=True)
        await send(run, None, agent="AsyncOpenAI/Python 2.54.0 (Ada's phone)")
        refused = await run.http.post(
            f"{run.base}/v1/chat/completions",
            json={},
            headers={"authorization": "Bearer a", "x-api-key": "b", "x-om-thread": "t"},
        )
        assert refused.status_code == 400
        await run.http.post(f"{run.base}/v1/embeddings", json={}, headers={"x-om-thread": "t"})
        samples = await read_until(run.http, run.base, lambda found: sum_requests(found) >= 5)
        assert {
            " ".join(name[1:]): value
            for name, value in samples.items()
            if name[0] == "om_requests_total"
        } == {
            "api=chat client= reason= route= status=raw upstream=scripted": 2,
            "api=chat client=openai-python reason=no-thread route= status=off upstream=scripted": 1,
            "api=chat client=python-httpx reason=refused route= status=off upstream=": 1,
            "api=chat client=python-httpx reason=route route=/v1/embeddings status=off upstream=": 1,
        }
        assert samples["om_failures_total", "cause=refused"] == 1
        assert samples["om_store_seconds_count", "op=commit", "outcome=done"] >= 1


async def test_usage_is_the_servers_own(tmp_path: Path) -> None:
    """The tokens of the replies, streamed or not, as the client reads them too."""
    async with run_with_scripted_models(tmp_path) as run:
        reported = (await send(run)).json()["usage"]
        samples = await read_until(run.http, run.base, lambda found: sum_requests(found) >= 1)
        name = "om_usage_tokens_total"
        assert samples[name, "kind=input", "model=other", "who=actor"] == reported["prompt_tokens"]
        assert (
            samples[name, "kind=output", "model=other", "who=actor"]
            == (reported["completion_tokens"])
        )
        sent = samples["om_prompt_tokens_total", "kind=sent", "model=other"]
        assert sent == samples["om_prompt_tokens_total", "kind=received", "model=other"] > 0


async def test_no_name_from_a_client_is_told(tmp_path: Path) -> None:
    """Prompts, keys, models and names stay off the page, also where threads are told apart."""
    canaries = ("canary-thread", "canary-resource", "canary-model", "canary-key", "canary-prompt")
    async with run_with_scripted_models(
        tmp_path, telemetry="resource_labels: true, thread_labels: true"
    ) as run:
        for number in range(6):
            await run.http.post(
                f"{run.base}/v1/chat/completions",
                json={
                    "model": f'canary-model-{number}"\n',
                    "messages": [{"role": "user", "content": f"canary-prompt {TOLD * number}"}],
                },
                headers={
                    "authorization": "Bearer canary-key",
                    "x-om-thread": "canary-thread",
                    "x-om-resource": "canary-resource",
                },
            )
        await run.app.background.wait_idle()
        await read_until(run.http, run.base, lambda found: sum_requests(found) >= 6)
        page = (await run.http.get(f"{run.base}/metrics")).text
        assert [canary for canary in canaries if canary in page] == []
        (label,) = {
            sample.labels["thread"]
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.labels.get("thread")
        }
        assert len(label) == 16


async def test_failures_in_the_middle_count_once(tmp_path: Path) -> None:
    """A server's error, a stream that is cut, and a client that leaves."""
    async with run_with_scripted_models(tmp_path) as run:
        run.models.faults.switch(Fault(kind="http", status=500))
        assert (await send(run)).status_code == 500
        run.models.faults.switch(Fault(kind="http", status=429))
        assert (await send(run)).status_code == 429
        run.models.faults.switch(Fault(kind="cut"))
        with pytest.raises(httpx.RemoteProtocolError):
            await send(run, stream=True)
        run.models.faults.switch(Fault(kind="hang"))
        with pytest.raises(httpx.ReadTimeout):
            await send(run, patience_s=0.5)
        run.models.faults.switch()
        await send(run)
        samples = await read_until(run.http, run.base, lambda found: sum_requests(found) >= 5)
        assert sum_requests(samples) == 5
        assert {name[1]: n for name, n in samples.items() if name[0] == "om_failures_total"} == {
            "cause=upstream-5xx": 1,
            "cause=upstream-429": 1,
            "cause=reply-truncated": 1,
            "cause=client-left": 1,
        }
        first_bytes = sum(
            n for name, n in samples.items() if name[0] == "om_upstream_first_byte_seconds_count"
        )
        assert first_bytes == 4  # the server that hung sent none
        overheads = (n for name, n in samples.items() if name[0] == "om_overhead_seconds_count")
        assert sum(overheads) == 5


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the processes are found in /proc")
@long_form
async def test_workers_are_one_server(tmp_path: Path) -> None:
    """The sum equals the requests sent, whichever worker answers the scrape. A worker that is
    killed loses none that it had counted."""
    async with serve_on_loopback(ScriptedServer(), lifespan="off") as upstream:
        process = Process(tmp_path / "om.yaml", port := free_port())
        (tmp_path / "om.yaml").write_text(
            f"""
            server: {{port: {port}, workers: 2}}
            upstream: [{{name: scripted, base_url: "{upstream}/v1", layout: blocks}}]
            storage: {{url: "sqlite:///{tmp_path}/om.db"}}
            """,
            encoding="utf-8",
        )
        await process.start(within=60)
        try:
            async with asyncio.timeout(30):
                while len(workers := children(process.pid)) < 2:  # noqa: ASYNC110 - the kernel sends no event of it
                    await asyncio.sleep(0.05)
            async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
                await asyncio.gather(*(send_once(process.base, n) for n in range(30)))
                await read_everywhere(http, process.base, 30)
                os.kill(min(workers), signal.SIGKILL)
                async with asyncio.timeout(30):
                    while len(children(process.pid) - {min(workers)}) < 2:  # noqa: ASYNC110 - the kernel sends no event of it
                        await asyncio.sleep(0.05)
                await read_everywhere(http, process.base, 30)
                await asyncio.gather(*(send_once(process.base, n) for n in range(10)))
                await read_everywhere(http, process.base, 40)
        finally:
            assert await process.terminate() == 0


async def send_once(base: str, number: int) -> None:
    """On a connection of its own, so that requests spread over the workers."""
    for _ in range(5):
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
                answer = await http.post(
                    f"{base}/v1/chat/completions",
                    json={"model": "m", "messages": [{"role": "user", "content": f"{number}"}]},
                    headers={"authorization": "Bearer sk-a", "x-om-thread": f"t{number}"},
                )
                assert answer.status_code == 200, answer.text
                return
        except httpx.ConnectError:
            continue
    raise AssertionError("five broken connections in a row")


async def read_everywhere(http: httpx.AsyncClient, base: str, requests: int) -> None:
    """Scrape on ten connections: each sees all requests, and never one too many."""
    await read_until(http, base, lambda found: sum_requests(found) == requests)
    for _ in range(10):
        async with httpx.AsyncClient(trust_env=False, timeout=30) as other:
            assert sum_requests(await read_samples(other, base)) == requests


async def test_costs_are_the_ledgers(tmp_path: Path) -> None:
    """The dollars of turns equal the provider's bill, and what is saved is what the ledger says."""
    async with run_with_scripted_models(tmp_path) as run:
        chat = run.chat()
        for _ in range(8):
            await ask(chat, TOLD)
        await run.app.background.wait_idle()
        samples = await read_until(run.http, run.base, lambda found: sum_requests(found) >= 8)
        paid = bill(run.models.requests_to(ACTOR))
        labels = ("history=full", f"model={ACTOR}")
        assert samples["om_cost_actual_total", *labels] == pytest.approx(paid / 1e6)
        ledger = (await run.memory()).ledger
        assert samples["om_cost_baseline_total", *labels] == pytest.approx(
            ledger.full.baseline_cost / 1e6
        )
        assert samples[("om_cost_savings_total",)] == pytest.approx(ledger.net_saving / 1e6)
        assert samples["om_observer_cost_total", "history=full", "model=other"] == 0  # no price
