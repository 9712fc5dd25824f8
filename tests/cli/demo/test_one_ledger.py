"""The terminal, the metrics, the dashboard's API, the CLI and the README tell one sum of the demo:
what was really sent."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from om_proxy.agents.models import find_price
from om_proxy.cli.demo import play, stage
from om_proxy.cli.demo.stage import open_stage, serve_kept
from om_proxy.cli.demo.story import Story, load_story
from om_proxy.cli.demo.summary import ActorCost, DemoResult, compute_costs
from om_proxy.proof.stage import Stage
from om_proxy.testing.scripted import ACTOR, ScriptedServer
from tests.cli.command_line import run_om_proxy

ROOT = Path(__file__).parents[3]
DEVIATION = 0.005
RUNS_DIFFER_BY = 0.03
TURNS_WITHOUT_LOOK_UPS = 45  # of 57: the last but one looks something up, and few save too little
METRICS = {
    "om_cost_baseline_total": "without",
    "om_cost_actual_total": "with_memory",
    "om_observer_cost_total": "memory",
    "om_reflector_cost_total": "memory",
}


async def read_metrics(url: str) -> dict[str, float]:
    """Return the dollars of each kind, summed up over all labels."""
    async with httpx.AsyncClient(trust_env=False) as http:
        page = (await http.get(f"{url}/metrics")).text
    sums: dict[str, float] = {}
    for name, kind in METRICS.items():
        values = re.findall(rf"^{name}{{.*}} (\S+)$", page, re.MULTILINE)
        sums[kind] = sums.get(kind, 0.0) + sum(map(float, values))
    return sums


def list_differences(told: dict[str, float], sent: ActorCost) -> dict[str, float]:
    """Return by how much each sum of dollars differs from what was sent, as a share."""
    net = {"saved": told["without"] - told["with_memory"] - told["memory"]}
    saved = sent.without - sent.with_memory - sent.memory
    expected = {
        "without": sent.without,
        "with_memory": sent.with_memory,
        "memory": sent.memory,
        "saved": saved,
    }
    return {kind: (told | net)[kind] / dollars - 1 for kind, dollars in expected.items()}


def read_saving(ledgers: list[dict[str, Any]]) -> dict[str, float]:
    fields = {"baseline": "without", "cost": "with_memory", "memory_cost": "memory"}
    return {
        kind: sum(ledger["saving"][field] for ledger in ledgers) / 1e6
        for field, kind in fields.items()
    }


def read_metrics_at_the_end(
    told: dict[str, dict[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Put the metrics of the next played story into `told`."""

    @contextlib.asynccontextmanager
    async def open_read_stage(
        *args: Any, **options: Any
    ) -> AsyncIterator[tuple[Stage, ScriptedServer]]:
        async with open_stage(*args, **options) as opened:
            yield opened
            told["metrics"] = await read_metrics(opened[0].url)

    monkeypatch.setattr(play, "open_stage", open_read_stage)


@pytest.mark.parametrize("model", ["gpt-5.4-mini", "claude-sonnet-5-5"])
async def test_the_estimate_is_what_was_sent_at_each_models_prices(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where cached input costs a tenth, an error in what the cache served weighs most. The scripted
    server reports no writes to the cache, so none is charged."""
    for module in (play, stage):
        monkeypatch.setattr(module, "ACTOR_NAME", f"{ACTOR}/{model}")
    told: dict[str, dict[str, float]] = {}
    read_metrics_at_the_end(told, monkeypatch)
    result = await play.play_story(load_story(), Console(file=io.StringIO()))
    price = find_price(model)
    assert price is not None
    price = replace(price, cache_write=price.input)
    assert told["metrics"]["without"] == pytest.approx(
        result.without.compute_dollars(price), rel=DEVIATION
    )


@pytest.mark.parametrize(
    ("look_ups", "streamed_every"),
    [(True, 2), (True, 1), (False, 2)],
    ids=["look-ups", "look-ups in streams", "no look-ups"],
)
async def test_all_tell_what_was_sent(
    look_ups: bool, streamed_every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sum is within half a percent of the bill of the two conversations, one without memory
    and one with it."""
    monkeypatch.setattr(play, "STREAMED_EVERY", streamed_every)
    story = load_story()
    if not look_ups:
        template = stage.SETTINGS_TEMPLATE.replace("retrieval: true", "retrieval: false")
        monkeypatch.setattr(stage, "SETTINGS_TEMPLATE", template)
        story = Story(story.turns[:TURNS_WITHOUT_LOOK_UPS])
    told: dict[str, dict[str, float]] = {}
    read_metrics_at_the_end(told, monkeypatch)
    result = await play.play_story(story, Console(file=io.StringIO()), kept_folder=tmp_path)
    (sent, *_) = compute_costs(result.without, result.with_memory, result.memory)
    async with (
        serve_kept(story, tmp_path, 0) as served,
        httpx.AsyncClient(base_url=f"{served.url}/om/v1", trust_env=False) as http,
    ):
        thread = (await http.get("/threads/van-planner")).json()
        days = (await http.get("/stats?by=day")).json()["items"]
        told["thread"] = read_saving([thread["ledger"]])
        told["overview"] = read_saving([line["ledger"] for line in days])
        command = ("stats", "--json", "--by", "model")
        printed = await asyncio.to_thread(
            run_om_proxy, *command, cwd=tmp_path, OM_PROXY_CONFIG=str(served.config)
        )
        told["CLI"] = read_saving([line["ledger"] for line in json.loads(printed.stdout)["items"]])
    differences = {place: list_differences(sums, sent) for place, sums in told.items()}
    assert {
        (place, kind): share
        for place, shares in differences.items()
        for kind, share in shares.items()
        if abs(share) > DEVIATION
    } == {}
    if look_ups:
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        (percent,) = re.findall(rf"costs (\d+) % less at {sent.actor}'s prices", readme)
        assert int(percent) == pytest.approx(sent.saved_share * 100, abs=1)
        assert list_false_figures(result, sent) == []


def list_false_figures(result: DemoResult, sent: ActorCost) -> list[tuple[str, str, float]]:
    """Return the dollars and tokens of the demo that a page tells wrongly: by more than a unit of
    the last digit, and more than runs differ by."""
    saved = sent.without - sent.with_memory - sent.memory
    million = 1e-6
    pages = {
        "README.md": {
            r"sends ([\d.]+) million tokens without it": result.without.prompt * million,
            r"without it, ([\d.]+) million\s+with it": result.with_memory.prompt * million,
            r"about \$([\d.]+) in the demo": sent.memory,
            rf"memory saves about\s+\$([\d.]+) with {sent.actor}": saved,
        },
        "docs/concepts/what-it-costs.md": {
            rf"at {sent.actor}'s list prices \| \$([\d.]+) \|": sent.without,
            rf"at {sent.actor}'s list prices \| \$[\d.]+ \| \$([\d.]+) \|": sent.with_memory,
            r"\| \$([\d.]+) with gemini": sent.memory,
        },
    }
    false = []
    for page, figures in pages.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        for pattern, figure in figures.items():
            (told,) = re.findall(pattern, text)
            unit = 10.0 ** -len(told.partition(".")[2])
            if abs(float(told) - figure) > max(unit, RUNS_DIFFER_BY * figure):
                false.append((page, told, figure))
    return false
