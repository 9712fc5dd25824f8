"""Every id that a prompt shows can be looked up by those who see it, and by nobody else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from om_proxy.testing.scripted import ScriptedServer
from tests.e2e.running import Running, run_with_scripted_models

MEMORY_SETTINGS = (
    "scope: resource, retrieval: true, "
    "observation: {message_tokens: 1200, buffer_tokens: 300}, reflection: {observation_tokens: 900}"
)
REMARK = "Crate {n} weighs {n} kilos, is painted red and goes to dock {n} at Quarry Steps. " * 4
ADA, EVE = {"x-om-resource": "ada"}, {"x-om-resource": "eve"}
# a line of ranges, and the label of a conversation
RANGES = re.compile(r"^\[((?:(?:[0-9a-f]{8}\.)?m\d+(?:-m\d+)?(?:, )?)+)\]$", re.MULTILINE)
LABEL = re.compile(r'<thread id="([0-9a-f]{16})"')


async def look_up(run: Running, thread: str, resource: str, **fields: str) -> int:
    answer = await run.http.post(
        f"{run.base}/om/v1/threads/{thread}/recall?resource={resource}",
        json=fields,
        headers={"authorization": "Bearer sk-a"},
    )
    return answer.status_code


def list_prompts(models: ScriptedServer, first: int) -> list[str]:
    """Return the texts of the prompts from this one on."""
    bodies: list[Any] = [
        json.loads(asked.body) for asked in models.requests_to("scripted-actor")[first:]
    ]
    return [
        "\n".join(
            message["content"]
            if isinstance(message["content"], str)
            else "\n".join(part["text"] for part in message["content"])
            for message in body["messages"]
        )
        for body in bodies
    ]


async def test_what_prompts_show_can_be_looked_up(tmp_path: Path) -> None:
    """Ranges of observations and reflections, of the conversation itself and of another one, and
    labels of conversations. To another resource all but bare numbers are unknown."""
    async with run_with_scripted_models(tmp_path, MEMORY_SETTINGS) as run:
        await run.chat("foreign", **EVE).say("Crate 1 is elsewhere.")
        talks = {name: run.chat(name, **ADA) for name in ("dock", "yard")}
        shown: dict[str, set[str]] = {name: set() for name in talks}
        labels: set[str] = set()
        for number in range(44):
            name = "dock" if number % 4 < 3 else "yard"
            first = len(run.models.requests_to("scripted-actor"))
            await talks[name].say(REMARK.format(n=number))
            run.clock.now += 1
            await run.app.background.wait_idle()
            for prompt in list_prompts(run.models, first):
                shown[name].update(
                    each for line in RANGES.findall(prompt) for each in line.split(", ")
                )
                labels.update(LABEL.findall(prompt))
        assert len(labels) == 2
        both = shown["dock"] & shown["yard"]
        assert all(any("." in each for each in shown[name] - both) for name in talks)
        for name, ranges in shown.items():
            assert len(ranges) > 4
            for each in sorted(ranges):
                for anchor in ("start", "end"):
                    fields = {"cursor": each, "anchor": anchor}
                    assert await look_up(run, name, "ada", **fields) == 200, each
                    if "." in each:
                        assert await look_up(run, "foreign", "eve", **fields) == 404, each
        for label in labels:
            assert await look_up(run, "dock", "ada", threadId=label) == 200
            assert await look_up(run, "foreign", "eve", threadId=label) == 404
