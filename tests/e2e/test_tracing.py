"""Traces of a live proxy: its span stands between the client's and the model server's."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from om_proxy.observability import spans
from tests.e2e.running import run_with_scripted_models

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CANARIES = ("canary-thread", "canary-resource", "canary-key", "canary-prompt")


async def test_the_clients_context_passes_untouched_while_tracing_is_off(tmp_path: Path) -> None:
    async with run_with_scripted_models(tmp_path) as run:
        await run.chat(traceparent=TRACEPARENT, tracestate="a=b").say("hello")
        sent = dict(run.models.requests[-1].headers)
        assert sent[b"traceparent"].decode() == TRACEPARENT
        assert sent[b"tracestate"] == b"a=b"


async def test_a_span_of_each_request_and_of_memorys_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No span holds a prompt, a key or a name."""
    exporter = InMemorySpanExporter()
    create_provider = spans.create_provider
    monkeypatch.setattr(spans, "create_provider", lambda: create_provider(exporter))
    async with run_with_scripted_models(tmp_path, telemetry="otel: true") as run:
        chat = run.chat(
            "canary-thread",
            key="canary-key",
            traceparent=TRACEPARENT,
            **{"x-om-resource": "canary-resource"},
        )
        for _ in range(8):
            await chat.say("canary-prompt: the blue crate stands at dock three. " * 20)
        sent = dict(run.models.requests_to("scripted-actor")[-1].headers)[b"traceparent"].decode()
        await run.app.background.wait_idle()
    finished = exporter.get_finished_spans()
    chats = [span for span in finished if span.name == "chat scripted-actor"]
    assert len(chats) == 8
    assert {f"{span.context.trace_id:032x}" for span in chats} == {TRACEPARENT.split("-")[1]}
    assert sent == f"00-{TRACEPARENT.split('-')[1]}-{chats[-1].context.span_id:016x}-01"
    assert "create_memory" in {span.name for span in finished}
    written = "".join(span.to_json() for span in finished)
    assert [canary for canary in CANARIES if canary in written] == []
