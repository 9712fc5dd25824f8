"""A prompt that would break a rule of its API is not sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.e2e.api_wires import JSON, WIRES, Wire
from tests.e2e.raw_upstream import read_reason, run_with_raw_upstream
from tests.e2e.running import CRATE_REMARK, SMALL_LOG_MEMORY, run_with_scripted_models
from tests.support.upstream_server import Script, script_answer

T = b"X-OM-Thread: t"
TOOLS = {"tools": [{"name": "n", "type": "function", "input_schema": {}}]}
CALLS = ("c1", "c2")


def answer_with_calls(wire: Wire) -> Script:
    if wire.api == "messages":
        blocks = [{"type": "tool_use", "id": i, "name": "n", "input": {}} for i in CALLS]
        return script_answer(wire.answer(content=blocks, stop_reason="tool_use"), JSON)
    items = [
        {"type": "function_call", "id": f"fc_{i}", "call_id": i, "name": "n", "arguments": "{}"}
        for i in CALLS
    ]
    return script_answer(wire.answer(output=items), JSON)


def write_results(wire: Wire, count: int) -> list[dict[str, Any]]:
    calls = CALLS[:count]
    if wire.api == "responses":
        return [{"type": "function_call_output", "call_id": c, "output": "x"} for c in calls]
    blocks = [{"type": "tool_result", "tool_use_id": c, "content": "x"} for c in calls]
    return [{"role": "user", "content": blocks}]


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.api)
async def test_of_a_client_that_sends_its_newest_message(tmp_path: Path, wire: Wire) -> None:
    """It sends one result of two: the stored calls are left out, and the rest of the conversation
    stays. With both results the step is whole."""
    for count, reason in ((2, "applied"), (1, "degraded/memory-error")):
        async with run_with_raw_upstream(tmp_path / str(count)) as site:
            await wire.ask(site, wire.body("my first words", **TOOLS), T)
            await wire.ask(site, wire.body("look", **TOOLS), T, script=answer_with_calls(wire))
            got = await wire.ask(site, wire.body(*write_results(wire, count), **TOOLS), T)
            assert read_reason(got) == reason
            written = orjson.dumps(orjson.loads(site.seen.body)[wire.member])
            assert b"my first words" in written
            assert (b'"n"' in written) == (count == 2)


async def test_of_a_client_that_sends_all(tmp_path: Path) -> None:
    """The original goes, and the turn is stored all the same."""
    async with run_with_scripted_models(tmp_path, SMALL_LOG_MEMORY) as run:
        history: list[dict[str, Any]] = []
        system: Any = "Be brief."
        seen: list[str] = []
        for number in range(16):
            if "applied" in seen:
                system = {"no": "system"} if len(history) % 4 == 0 else "Be brief."
            history.append({"role": "user", "content": CRATE_REMARK.format(n=number)})
            body = orjson.dumps({"model": "scripted-actor", "system": system, "messages": history})
            headers = {"x-api-key": "sk-a", "x-om-thread": "t", "content-type": "application/json"}
            answer = await run.http.post(f"{run.base}/v1/messages", content=body, headers=headers)
            assert answer.status_code == 200
            history.append({"role": "assistant", "content": answer.json()["content"]})
            status = answer.headers["x-om-status"]
            seen.append(status)
            if system != "Be brief.":
                assert (status, answer.headers["x-om-reason"]) == ("degraded", "memory-error")
                assert run.models.requests_to("scripted-actor")[-1].body == body
            run.clock.now += 1
            await run.app.background.wait_idle()
            if status != "degraded":  # such a turn is stored with the next one
                assert (await run.memory()).count == len(history)
        assert {"applied", "degraded"} <= set(seen)
        assert seen[-2:] in (["applied", "degraded"], ["degraded", "applied"])
