"""The one line that each request leaves in the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from om_proxy.agents.models.small_models import SMALL_MODELS_BY_HOST
from om_proxy.testing.scripted import Fault
from tests.e2e.running import run_with_scripted_models
from tests.e2e.written import collect_log_lines

LONG = (
    "Crate {n} weighs {n} kilos, is painted red and goes to dock {n} at Quarry Steps. " * 8
)  # about 180 tokens
AT_ONCE = "observation: {message_tokens: 1000, buffer_tokens: false, block_timeout: 20s}"


async def test_model_and_tokens(tmp_path: Path) -> None:
    """A line says which model was asked and what the prompt came to, as the receipt says it."""
    with collect_log_lines() as out:
        async with run_with_scripted_models(tmp_path) as run:
            _, receipt = await run.chat("t").say("hello")
    (line,) = out.events("turn")
    assert line["model"] == "scripted-actor"
    assert [line["tokens_received"], line["tokens_sent"]] == [
        int(receipt["tokens-received"]),
        int(receipt["tokens-sent"]),
    ]
    assert "name" not in line


async def test_the_memory_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line names the small model that `auto` found on the request's server."""
    monkeypatch.setitem(SMALL_MODELS_BY_HOST, "127.0.0.1", ("scripted-observer",))
    with collect_log_lines() as out:
        async with run_with_scripted_models(
            tmp_path, more="models: {scripted-actor: {model: auto}}"
        ) as run:
            await run.chat("t").say("hello")
    (line,) = out.events("turn")
    assert (line["model"], line["observer"]) == ("scripted-actor", "scripted-observer")


async def test_a_request_that_waited_is_no_retry(tmp_path: Path) -> None:
    """What a request brought is stored before it waits for an observation; the line says how it
    stood when it came."""
    with collect_log_lines() as out:
        async with run_with_scripted_models(tmp_path, AT_ONCE) as run:
            talk = run.chat("t")
            for n in range(8):
                await talk.say(LONG.format(n=n))
    lines = out.events("turn", "observed")
    assert "observed" in [line["event"] for line in lines]
    assert {line["case"] for line in lines if line["event"] == "turn"} == {"first", "extend"}


@pytest.mark.parametrize(
    ("upstream", "status", "level"),
    [("http://127.0.0.1:1", 502, "warning"), (None, 500, "info")],
    ids=["ours", "theirs"],
)
async def test_a_failure_of_ours_is_a_warning(
    tmp_path: Path, upstream: str | None, status: int, level: str
) -> None:
    """A 502 that we answer is a warning; a 500 that the model server answers is its own."""
    with collect_log_lines() as out:
        async with run_with_scripted_models(
            tmp_path, upstream_url=lambda found: upstream or found
        ) as run:
            run.models.faults.switch(Fault(kind="http", model="scripted-actor", status=500))
            answer = await run.http.post(
                f"{run.base}/v1/chat/completions",
                json={
                    "model": "scripted-actor",
                    "messages": [{"role": "user", "content": "hello"}],
                },
                headers={"x-om-thread": "t"},
            )
    assert answer.status_code == status
    (line,) = out.events("turn")
    assert (line["status"], line["level"]) == (status, level)
