"""Make spans of chat requests and of memory's own work. They hold no text of a conversation."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from om_proxy import __version__
from om_proxy.memory.model import Key
from om_proxy.memory.token_prices import Usage
from om_proxy.observability.facts import Fact, Forgotten, MemoryCallEnded, TurnEnded
from om_proxy.observability.logs import redact_model_name

# Name spans and attributes as OpenTelemetry's conventions for generative AI do.
#
# These conventions are in development, and names still change. This file pins them: the attributes
# are those of opentelemetry-semantic-conventions 0.66b2, and the memory operations those of the
# conventions' memory spans. No library is imported for them, so that an update changes no name.


OPERATION_NAME = "gen_ai.operation.name"
PROVIDER_NAME = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
CONVERSATION_ID = "gen_ai.conversation.id"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS = "gen_ai.usage.cache_creation.input_tokens"
TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"  # seconds
MEMORY_STORE_ID = "gen_ai.memory.store.id"
MEMORY_RECORD_COUNT = "gen_ai.memory.record.count"
ERROR_TYPE = "error.type"
STATUS_CODE = "http.response.status_code"

CHAT = "chat"
EMBEDDINGS = "embeddings"
CREATE_MEMORY = "create_memory"
UPDATE_MEMORY = "update_memory"
DELETE_MEMORY = "delete_memory"

# ours: what memory did with the request, as in the receipt
MEMORY_STATUS = "om.status"
MEMORY_REASON = "om.reason"
API = "om.api"
TOKENS_RECEIVED = "om.tokens_received"
TOKENS_SENT = "om.tokens_sent"


Header = tuple[bytes, bytes]
CONTEXT_HEADERS = (b"traceparent", b"tracestate")
NANOSECONDS = 1_000_000_000
OPERATIONS = {
    "observe": CREATE_MEMORY,
    "reflect": UPDATE_MEMORY,
    "embed": EMBEDDINGS,
}

_propagator = TraceContextTextMapPropagator()


def create_provider(exporter: SpanExporter | None = None) -> TracerProvider:
    """Create the provider. OTEL_* variables configure it and the exporter, as everywhere else."""
    if exporter is None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - a test needs no network
            OTLPSpanExporter,
        )

        exporter = OTLPSpanExporter()
    resource = Resource.create()  # of the environment's variables
    if str(resource.attributes["service.name"]).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "om-proxy"}))
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


class Tracing:
    """The spans of one process. `label` returns the keyed label of a thread."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer: Tracer = provider.get_tracer("om-proxy", __version__)

    def create_chat_tracer(self, label: Callable[[Key], str]) -> ChatTracer:
        return ChatTracer(self._tracer, label)

    def create_subscriber(self, label: Callable[[Key], str]) -> Callable[[Fact], None]:
        return MemorySpans(self._tracer, label)

    def close(self) -> None:
        """Export what is left. This waits for the network: call it in a thread."""
        self._provider.shutdown()


@dataclass(frozen=True, slots=True, eq=False)
class ChatTracer:
    """Begins the span of each chat request."""

    tracer: Tracer
    label: Callable[[Key], str]

    def begin_chat(
        self, headers: Sequence[Header], model: str | None, key: Key | None, upstream: str
    ) -> ChatSpan:
        """Begin a child of the client's span, or a new trace."""
        model = redact_model_name(model)
        attributes: dict[str, Any] = {
            OPERATION_NAME: CHAT,
            PROVIDER_NAME: upstream,
        }
        if model:
            attributes[REQUEST_MODEL] = model
        if key is not None:
            attributes[CONVERSATION_ID] = self.label(key)
        span = self.tracer.start_span(
            f"{CHAT} {model}" if model else CHAT,
            _propagator.extract(_read_carrier(headers)),
            SpanKind.CLIENT,
            attributes,
        )
        return ChatSpan(span)


@dataclass(frozen=True, slots=True, eq=False)
class ChatSpan:
    """The span of one chat request."""

    span: Span

    def replace_context(self, headers: Sequence[Header]) -> list[Header]:
        """Return the headers with this span as the parent of the model server's."""
        carrier: dict[str, str] = {}
        _propagator.inject(carrier, set_span_in_context(self.span))
        others = [header for header in headers if header[0] not in CONTEXT_HEADERS]
        return [*others, *((name.encode(), value.encode()) for name, value in carrier.items())]

    def end(self, turn: TurnEnded) -> None:
        span = self.span
        span.set_attributes(_describe_turn(turn))
        if turn.end != "complete" or turn.status >= 400:
            error = str(turn.status) if turn.end == "complete" else turn.end
            span.set_attribute(ERROR_TYPE, error)
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    def abandon(self) -> None:
        """End the span of a request that ended without a fact; do nothing if it has ended."""
        if self.span.is_recording():
            self.span.set_status(Status(StatusCode.ERROR))
            self.span.end()


@dataclass(frozen=True, slots=True, eq=False)
class MemorySpans:
    """The subscriber that makes a span of each piece of memory's own work, when it has ended."""

    tracer: Tracer
    label: Callable[[Key], str]

    def __call__(self, fact: Fact) -> None:
        match fact:
            case MemoryCallEnded():
                self._add_call(fact)
            case Forgotten(key=key, messages=messages):
                attributes = {MEMORY_RECORD_COUNT: messages}
                self._add(DELETE_MEMORY, (key,), 0.0, attributes)
            case _:
                pass

    def _add_call(self, call: MemoryCallEnded) -> None:
        model = redact_model_name(call.model)
        attributes: dict[str, Any] = _describe_usage(call.usage)
        if model:
            attributes[REQUEST_MODEL] = model
        if call.outcome != "answered":
            attributes[ERROR_TYPE] = call.outcome
        elif call.work != "embed":
            attributes[MEMORY_RECORD_COUNT] = len(call.keys)
        self._add(OPERATIONS[call.work], call.keys, call.seconds, attributes)

    def _add(
        self, operation: str, keys: Sequence[Key], seconds: float, attributes: Mapping[str, Any]
    ) -> None:
        ended_at = time.time_ns()
        span = self.tracer.start_span(
            operation,
            kind=SpanKind.INTERNAL,
            attributes={OPERATION_NAME: operation, **attributes},
            start_time=ended_at - int(seconds * NANOSECONDS),
        )
        if len(keys) == 1:  # a call for several threads belongs to none of them
            span.set_attribute(MEMORY_STORE_ID, self.label(keys[0]))
        if ERROR_TYPE in attributes:
            span.set_status(Status(StatusCode.ERROR))
        span.end(ended_at)


def _describe_turn(turn: TurnEnded) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        STATUS_CODE: turn.status,
        MEMORY_STATUS: str(turn.memory),
        API: turn.api,
    }
    optional = {
        MEMORY_REASON: turn.reason and str(turn.reason),
        TOKENS_RECEIVED: turn.tokens_received,
        TOKENS_SENT: turn.tokens_sent,
        TIME_TO_FIRST_CHUNK: turn.first_byte_s,
    }
    attributes |= {name: value for name, value in optional.items() if value is not None}
    return attributes | (_describe_usage(turn.usage) if turn.usage else {})


def _describe_usage(usage: Usage) -> dict[str, Any]:
    return {
        INPUT_TOKENS: usage.input_tokens,
        OUTPUT_TOKENS: usage.output_tokens,
        CACHE_READ_TOKENS: usage.cached_tokens,
        CACHE_WRITE_TOKENS: usage.cache_write_tokens,
    }


def _read_carrier(headers: Sequence[Header]) -> dict[str, str]:
    """Return the client's trace context. A context that was sent twice counts as none."""
    found = [(name.decode(), value) for name, value in headers if name in CONTEXT_HEADERS]
    carrier = {name: value.decode("latin-1") for name, value in found}
    return carrier if len(carrier) == len(found) else {}
