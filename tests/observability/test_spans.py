"""Spans say what happened, in the conventions' names, and hold no text."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from om_proxy.memory.model import Key
from om_proxy.memory.token_prices import Usage
from om_proxy.observability.facts import Forgotten, MemoryCallEnded, Observed
from om_proxy.observability.spans import Tracing, create_provider
from tests.observability.figures.test_fact_counter import turn

KEY = Key("tenant", "ada", "secret plans")
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = (b"traceparent", f"00-{TRACE}-{PARENT}-01".encode())


class Traced:
    """Tracing whose spans are kept."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        tracing = Tracing(provider)
        self.chat = tracing.create_chat_tracer(lambda key: f"label-{len(key.thread)}")
        self.subscriber = tracing.create_subscriber(lambda key: f"label-{len(key.thread)}")

    def finished(self) -> ReadableSpan:
        (span,) = self._exporter.get_finished_spans()
        return span


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_chat_is_the_clients_child_and_the_servers_parent() -> None:
    traced = Traced()
    span = traced.chat.begin_chat([TRACEPARENT], "gpt-4o", KEY, "openai")
    headers = span.replace_context([TRACEPARENT, (b"accept", b"*/*")])
    span.end(turn(usage=Usage(250, 200, 0, 40)))
    finished = traced.finished()
    assert finished.name == "chat gpt-4o"
    assert finished.kind is SpanKind.CLIENT
    assert finished.parent is not None
    assert f"{finished.parent.span_id:016x}" == PARENT
    own_id = f"{finished.context.span_id:016x}"
    assert headers == [
        (b"accept", b"*/*"),
        (b"traceparent", f"00-{TRACE}-{own_id}-01".encode()),
    ]
    assert attributes_of(finished) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.conversation.id": "label-12",
        "gen_ai.usage.input_tokens": 250,
        "gen_ai.usage.cache_read.input_tokens": 200,
        "gen_ai.usage.cache_creation.input_tokens": 0,
        "gen_ai.usage.output_tokens": 40,
        "gen_ai.response.time_to_first_chunk": 0.3,
        "http.response.status_code": 200,
        "om.api": "chat",
        "om.status": "applied",
        "om.tokens_received": 900,
        "om.tokens_sent": 300,
    }
    assert finished.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(
    "headers",
    [[], [(b"traceparent", b"nonsense")], [TRACEPARENT, TRACEPARENT], [(b"traceparent", b"\xff")]],
)
def test_without_a_context_a_trace_begins(headers: list[tuple[bytes, bytes]]) -> None:
    traced = Traced()
    span = traced.chat.begin_chat(headers, None, None, "openai")
    (sent,) = span.replace_context(headers)
    span.end(turn())
    finished = traced.finished()
    assert (finished.name, finished.parent) == ("chat", None)
    assert sent[1].decode().split("-")[1] == f"{finished.context.trace_id:032x}" != TRACE


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"status": 500}, "500"),
        ({"end": "truncated"}, "truncated"),
        ({"status": 502, "end": "om_upstream_unreachable"}, "om_upstream_unreachable"),
    ],
)
def test_errors(more: dict[str, Any], error: str) -> None:
    traced = Traced()
    traced.chat.begin_chat([], "gpt-4o", KEY, "openai").end(turn(**more))
    assert attributes_of(traced.finished())["error.type"] == error
    assert traced.finished().status.status_code is StatusCode.ERROR


def test_an_abandoned_span_ends_once() -> None:
    """A request that is cancelled ends its span too; one that has ended is not ended again."""
    traced = Traced()
    span = traced.chat.begin_chat([], "gpt-4o", KEY, "openai")
    span.abandon()
    span.abandon()
    assert traced.finished().status.status_code is StatusCode.ERROR


@pytest.mark.parametrize(
    ("work", "operation"), [("observe", "create_memory"), ("reflect", "update_memory")]
)
def test_memorys_own_work(work: Any, operation: str) -> None:
    traced = Traced()
    traced.subscriber(MemoryCallEnded((KEY,), work, "o3", "answered", 2.0, 1, Usage(9, 4, 0, 3)))
    finished = traced.finished()
    assert (finished.name, finished.kind) == (operation, SpanKind.INTERNAL)
    assert finished.end_time is not None
    assert finished.start_time is not None
    assert finished.end_time - finished.start_time == 2_000_000_000
    attributes = attributes_of(finished)
    assert attributes["gen_ai.memory.store.id"] == "label-12"
    assert attributes["gen_ai.memory.record.count"] == 1
    assert attributes["gen_ai.usage.input_tokens"] == 9


def test_a_failed_call_for_several_threads() -> None:
    traced = Traced()
    keys = (KEY, KEY._replace(thread="x"))
    traced.subscriber(MemoryCallEnded(keys, "observe", "o3", "failed", 2.0, 1, Usage()))
    attributes = attributes_of(traced.finished())
    assert attributes["error.type"] == "failed"
    assert "gen_ai.memory.store.id" not in attributes


def test_forgetting_is_a_span() -> None:
    traced = Traced()
    traced.subscriber(Observed(KEY, 900, 90, True, "o3"))  # no span of its own: its call has one
    traced.subscriber(Forgotten(KEY, 3, "gone"))
    assert traced.finished().name == "delete_memory"
    assert attributes_of(traced.finished())["gen_ai.memory.record.count"] == 3


def test_the_service_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own, unless the environment gives another."""
    exporter = InMemorySpanExporter()
    assert create_provider(exporter).resource.attributes["service.name"] == "om-proxy"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "memory-of-ours")
    assert create_provider(exporter).resource.attributes["service.name"] == "memory-of-ours"
