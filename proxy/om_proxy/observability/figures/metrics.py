"""The one table of metrics: the collector, the reference page and the tests are made of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from om_proxy.settings.identity.client_names import CLIENT_NAMES

Kind = Literal["counter", "gauge", "histogram"]

# seconds; memory takes from half a millisecond to a wait for an observation
OVERHEAD_BOUNDS_S = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0),
)
FIRST_BYTE_BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
CALL_BOUNDS_S = (0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0)
STORE_BOUNDS_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 5.0),
)
RATIO_BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0)
# the labels that `telemetry.resource_labels` and `telemetry.thread_labels` add
OPTIONAL_LABELS = ("resource", "thread")


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric as Prometheus knows it. `names_thread`: whether it may have `OPTIONAL_LABELS`."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()  # upper bounds of a histogram's buckets, without infinity
    names_thread: bool = False

    @property
    def count_of_numbers(self) -> int:
        """The numbers of one series: one, or of a histogram a count for each bucket and the sum."""
        return len(self.bounds) + 2 if self.bounds else 1


REQUESTS = Metric(
    "om_requests_total",
    "counter",
    "Requests of APIs with memory, and requests that name a thread on another route, by the words of "
    "their receipt. A request that was refused before it was sent has the reason `refused`.",
    ("status", "reason", "upstream", "api", "client", "route"),
)
OVERHEAD = Metric(
    "om_overhead_seconds",
    "histogram",
    "Time from the end of a request's body to its first byte upstream, waiting included.",
    ("status",),
    OVERHEAD_BOUNDS_S,
)
FIRST_BYTE = Metric(
    "om_upstream_first_byte_seconds",
    "histogram",
    "Time from sending a prompt to the head of the model server's answer.",
    ("upstream",),
    FIRST_BYTE_BOUNDS_S,
)
PROMPT_TOKENS = Metric(
    "om_prompt_tokens_total",
    "counter",
    "Tokens of prompts, as the client sent them and as they went upstream.",
    ("kind", "model"),
    names_thread=True,
)
USAGE_TOKENS = Metric(
    "om_usage_tokens_total",
    "counter",
    "Tokens that model servers reported. `cached` and `cache_write` are parts of `input`.",
    ("kind", "model", "who"),
    names_thread=True,
)
OBSERVATIONS_CREATED = Metric(
    "om_observations_created_total",
    "counter",
    "Notes that the observer made and that were stored, by its model.",
    ("model",),
    names_thread=True,
)
REFLECTIONS_CREATED = Metric(
    "om_reflections_created_total",
    "counter",
    "Reflections that the reflector made, by its model.",
    ("model",),
    names_thread=True,
)
OBSERVER_DURATION = Metric(
    "om_observer_duration_seconds",
    "histogram",
    "Time of one call of the observer with its retries, by how it ended.",
    ("model", "outcome"),
    CALL_BOUNDS_S,
)
REFLECTOR_DURATION = Metric(
    "om_reflector_duration_seconds",
    "histogram",
    "Time of one call of the reflector with its retries, by how it ended.",
    ("model", "outcome"),
    CALL_BOUNDS_S,
)
EMBEDDING_DURATION = Metric(
    "om_embedding_duration_seconds",
    "histogram",
    "Time of one call of the embedding model, by how it ended.",
    ("model", "outcome"),
    CALL_BOUNDS_S,
)
COMPRESSION_RATIO = Metric(
    "om_compression_ratio",
    "histogram",
    "Tokens of new notes, divided by the tokens that they were made of.",
    ("kind",),
    RATIO_BOUNDS,
)
COST_BASELINE = Metric(
    "om_cost_baseline_total",
    "counter",
    "Dollars that turns would have cost without memory. For a client that sends only a part of its "
    "history this is what they cost.",
    ("model", "history"),
    names_thread=True,
)
COST_ACTUAL = Metric(
    "om_cost_actual_total",
    "counter",
    "Dollars that turns cost.",
    ("model", "history"),
    names_thread=True,
)
OBSERVER_COST = Metric(
    "om_observer_cost_total",
    "counter",
    "Dollars that calls of the observer cost.",
    ("model", "history"),
    names_thread=True,
)
REFLECTOR_COST = Metric(
    "om_reflector_cost_total",
    "counter",
    "Dollars that calls of the reflector cost.",
    ("model", "history"),
    names_thread=True,
)
EMBEDDING_COST = Metric(
    "om_embedding_cost_total",
    "counter",
    "Dollars that calls of the embedding model cost.",
    ("model", "history"),
    names_thread=True,
)
COST_SAVINGS = Metric(
    "om_cost_savings_total",
    "gauge",
    "Dollars saved since the start for clients that send their full history: baseline, less actual "
    "and memory's own calls. It may fall, so it is a gauge; take rates of the counters instead.",
)
FAILURES = Metric(
    "om_failures_total",
    "counter",
    "Failures, by cause. The list of causes is closed.",
    ("cause",),
)
CREDENTIALS_REFUSED = Metric(
    "om_credentials_refused_total",
    "counter",
    "Wrong keys and tokens that were sent, on any route. A missing or an expired one is not counted.",
    ("kind",),
)
RETIRED = Metric(
    "om_retired_total",
    "counter",
    "What went by a rule of `retention`: threads (`ttl`), entries that lost lines "
    "(`max_observations`), older generations (`max_reflections`, `generations`).",
    ("why",),
)
LOOK_UPS = Metric(
    "om_recall_total",
    "counter",
    "Look-ups of earlier messages that models made, by what they asked for and what they were told.",
    ("mode", "outcome"),
)
LOOK_UP_SECONDS = Metric(
    "om_recall_seconds",
    "histogram",
    "Time of one step of look-ups in a reply: the calls that a model made at once.",
    (),
    STORE_BOUNDS_S,
)
LATER_ROUNDS = Metric(
    "om_recall_rounds_total",
    "counter",
    "Requests to model servers that look-ups added to replies.",
)
STORE_SECONDS = Metric(
    "om_store_seconds",
    "histogram",
    "Time of each call of the store, by operation and outcome.",
    ("op", "outcome"),
    STORE_BOUNDS_S,
)
MESSAGES_TOKENS = Metric(
    "om_messages_tokens",
    "gauge",
    "Tokens of stored messages that no notes cover yet. This gauge and the next four are about the "
    "whole store: one process of all that share it has them.",
)
OBSERVATIONS_TOKENS = Metric(
    "om_observations_tokens", "gauge", "Tokens of the notes in all logs, reflections left out."
)
REFLECTIONS_TOKENS = Metric(
    "om_reflections_tokens", "gauge", "Tokens of the notes in all logs that the reflector wrote."
)
DUE_WORK = Metric(
    "om_due_work", "gauge", "Threads whose memory work is due, and that no process works on."
)
PARKED_THREADS = Metric(
    "om_parked_threads", "gauge", "Threads whose memory work was given up after many failures."
)
TURNS_WAITING = Metric(
    "om_turns_waiting",
    "gauge",
    "Turns that wait in memory because the store cannot be written.",
)
WORK_RUNNING = Metric(
    "om_work_running",
    "gauge",
    "Threads whose notes are being made now.",
)
REQUESTS_IN_FLIGHT = Metric(
    "om_requests_in_flight",
    "gauge",
    "Requests that are being served now. `limits.in_flight` bounds them in each process.",
)
BUILD_INFO = Metric(
    "om_build_info",
    "gauge",
    "1, with the version of the proxy and of Python.",
    ("version", "python"),
)

# in the order of the page, which is that of the definitions above
METRICS = tuple(found for found in [*globals().values()] if isinstance(found, Metric))
METRICS_BY_NAME = {metric.name: metric for metric in METRICS}

# label → its values
LABEL_VALUES = {
    "status": "what memory did with the request: `x-om-status`",
    "reason": "`x-om-reason`; empty without one; `refused` for a request that was sent nowhere",
    "upstream": "the name of the model server in the configuration; empty if none was asked",
    "api": "of the request: `chat` `responses` `messages`; on routes without memory too",
    "client": "with the status `off`, the program that `User-Agent` names: "
    f"{' '.join(f'`{name}`' for name in CLIENT_NAMES)}; else empty",
    "route": "with the reason `route`, what the path asks for, such as `/v1/embeddings`, or `other`; "
    "else empty",
    "model": "a name of the price table or the configuration, else `other`; at most 200",
    "kind": "of prompts `received` `sent`; of usage `input` `cached` `cache_write` `output`; of "
    "ratios `observation` `reflection`; of credentials `admin` `metrics` `key` (of `auth.keys`) "
    "`token` (`X-OM-Token`)",
    "history": "what the client sends: `full` for its whole history, `partial` for less",
    "who": "`actor` `observer` `reflector` `embedder`",
    "mode": "`search` `messages` `threads`",
    "outcome": "of calls `answered` `failed` `abandoned`; of look-ups `found` `nothing` `error` "
    "`unavailable`; of the store `done` `conflict` `cancelled` `failed`",
    "cause": "below",
    "why": "`ttl`: nobody had used them for `retention.ttl_days`",
    "op": "the method of the store",
    "version": "of om-proxy",
    "python": "its version",
}
# cause → what happened
FAILURE_CAUSES = {
    "client-left": "the client left before the end of its reply",
    "reply-truncated": "the model server broke a reply off",
    "upstream-4xx": "the model server answered with a status from 400 to 499, without 429",
    "upstream-429": "the model server answered 429",
    "upstream-5xx": "the model server answered with a status from 500 on",
    "upstream-unreachable": "the model server could not be reached or read",
    "upstream-timeout": "the model server did not answer in time",
    "overloaded": "the proxy was at a limit, and answered 503",
    "refused": "the proxy refused a request that its client must correct",
    "internal": "the proxy failed a request",
    "memory-bypassed": "memory failed, and the client's original request went upstream",
    "turn-lost": "a turn could not be stored",
    "turn-extra": "something beside a turn failed, such as its price; the turn was stored without",
    "observe": "the observer gave nothing usable",
    "reflect": "the reflector gave nothing usable",
}
