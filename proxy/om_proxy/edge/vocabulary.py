"""Lists every word a client can meet, with its meaning: headers, statuses, reasons, error codes.

`scripts/reference` makes the pages in docs/reference from these lists. tests/test_docs.py compares
them with the code that says the words.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """Names that share one meaning. `told_with`: the statuses or HTTP codes they come with."""

    names: tuple[str, ...]
    told_with: str
    meaning: str


def _row(names: str, meaning: str, told_with: str = "") -> Row:
    return Row(tuple(names.split()), told_with, meaning)


REQUEST_HEADERS = (
    _row(
        "X-OM-Thread",
        "The conversation. Where nothing names one, om-proxy touches nothing. A used id "
        "continues its old conversation: a new one needs a new id. Also taken: `x-thread-id`, "
        "`X-OpenWebUI-Chat-Id`",
    ),
    _row(
        "X-OM-Resource",
        "The owner of the conversation: a user, an agent. Also taken: `x-resource-id`, `X-OpenWebUI-User-Id`",
    ),
    _row(
        "X-OM-Mode",
        "`on`, `read` (inject, store nothing), `write` (store, inject nothing), `off`",
    ),
    _row(
        "X-OM-History",
        "What the messages are, where guessing is not good enough: `auto`, `full` (what is not "
        "sent no longer exists), `window`, `new` (every message is new)",
    ),
    _row(
        "X-OM-Scope",
        "`thread` or `resource`, in place of the configured scope. It has an effect only with "
        "`identity.scope_override`",
    ),
    _row(
        "X-OM-Authorization",
        "A key of `auth.keys`, where `Authorization` holds the provider's own. Also taken: "
        "`X-Memory-Gateway-Authorization`",
    ),
    _row(
        "X-OM-Token",
        "The user's resource and thread, signed by your application; only with "
        "`auth.token_secret`. `om-proxy token` makes one",
    ),
    _row(
        "X-OM-Timezone",
        "The user's time zone, as an IANA name such as `Europe/Berlin`, for the dates in "
        "observations and prompts. It is kept with the thread. Without it, `memory.timezone` "
        "holds",
    ),
    _row(
        "X-OM-Task",
        "Anything but an unfilled `{{template}}` marks a side request (titles, tags), which has no memory",
    ),
)

RESPONSE_HEADERS = (
    _row(
        "x-om-status",
        "`off`, `raw` (memory is on, and there is nothing to rewrite yet), `applied`, "
        "`degraded` (memory could not do all it should; the reason says what)",
    ),
    _row(
        "x-om-reason",
        "One word, where there is something to explain: see [reasons](reasons.md)",
    ),
    _row(
        "x-om-thread",
        "The thread the request was taken for, percent-encoded where it must be",
    ),
    _row(
        "x-om-tokens-received x-om-tokens-sent",
        "The prompt as you sent it, and as it went upstream",
    ),
    _row(
        "x-om-pending-tokens x-om-observation-tokens x-om-chunks x-om-generation",
        "The raw tail, the log, the buffered chunks, and the version of the log",
    ),
    _row(
        "x-om-overhead-ms",
        "The time om-proxy took before it forwarded the request, an observation that it waited for included",
    ),
)

STATUSES = ("off", "raw", "applied", "degraded")

REASONS = (
    _row(
        "no-thread",
        "The request names no thread. The bytes passed through",
        "off",
    ),
    _row(
        "route",
        "The request names a thread, and its route has no memory. The bytes passed through, and "
        "the log warned once for each client and route, at most 20 times a minute",
        "off",
    ),
    _row(
        "no-credential",
        "The request has no API key, and one of three things holds: (a) the server listens "
        "beyond loopback; (b) a web page of another site asks, or the `Host` is not this "
        "machine's; (c) a proxy says that the request comes from elsewhere. It has no memory",
        "off",
    ),
    _row(
        "disabled mode-off",
        "`memory: false`, or `X-OM-Mode: off`",
        "off",
    ),
    _row(
        "side-request",
        "A request for a title, tags or a follow-up has no memory. In a thread whose newest "
        "turn offered tools, the same holds for a request without tools that repeats nothing of "
        "the thread, such as a message from another device. With `X-OM-History: new` it is a "
        "message all the same",
        "off",
    ),
    _row(
        "unreadable",
        "The body is no chat request as om-proxy knows it, or holds a message that is none. The model server judges it",
        "off degraded",
    ),
    _row(
        "no-messages",
        "The request holds instructions alone",
        "off",
    ),
    _row(
        "write-only",
        "`X-OM-Mode: write`, or `memory.mode: shadow`",
        "raw",
    ),
    _row(
        "observer-failing",
        "The observer model fails. What it could not observe is sent raw. om-proxy tries again "
        "after 1 minute, doubling to 6 hours; after 8 failures in a row when `om-proxy doctor "
        "--revive` says so",
        "raw applied",
    ),
    _row(
        "observer-late",
        "The request should have waited for an observation, and goes out without it. Either the "
        "observation was not ready in time, another request had waited for the same call, the "
        "observer failed and is tried again later, or the server was too busy to wait. The "
        "notes come later",
        "raw applied",
    ),
    _row(
        "fork-not-waited",
        "An observation was due, but of messages that replace others. Those are not stored before their reply",
        "raw applied",
    ),
    _row(
        "economy",
        "`memory.economy: auto`: notes are due, and wait until they are expected to save what they cost",
        "raw applied",
    ),
    _row(
        "tail-limit",
        "Raw messages beyond `context.tail_limit` were left out of this prompt",
        "degraded",
    ),
    _row(
        "upstream-refused",
        "The model server refused the rewritten prompt, so the original was sent",
        "degraded",
    ),
    _row(
        "context-overflow",
        "The prompt was too long for the model. Older messages were observed while you waited. "
        "Either a shorter prompt was sent (`applied`), or none could be made (`degraded`) and "
        "the refusal is the model server's",
        "applied degraded",
    ),
    _row(
        "reply-too-large",
        "The reply was relayed and not remembered: it was above 64 MiB, or `limits.memory` had "
        "no room. This word is in the log alone, because the receipt goes out before the reply",
    ),
    _row(
        "storage",
        "The store fails. New turns wait in memory and are in the next prompts of their thread. "
        "Where the thread cannot be read, the original was sent",
        "degraded",
    ),
    _row(
        "memory-slow memory-error conflict",
        "Memory took too long or failed: the original was sent",
        "degraded",
    ),
)

ERRORS = (
    _row(
        "om_bad_header om_two_credentials",
        "A header of identity has no valid meaning, or there are two different keys. Send the one that is meant",
        "400",
    ),
    _row(
        "om_no_resource",
        "`scope: resource` holds, and no resource is named. Send `X-OM-Resource`",
        "400",
    ),
    _row(
        "om_no_upstream",
        "No server's `match` fits the model; or there are several servers, and the model's name "
        "cannot be read. Correct the name, or add a server under `upstream`",
        "400",
    ),
    _row(
        "om_bad_http om_bad_host om_bad_path",
        "The request is no HTTP/1.1 that can be read; or it has not one plain `Host`; or its "
        "path has empty, `..` or encoded separator segments, or a thread prefix that names no "
        "thread. Correct the client",
        "400",
    ),
    _row(
        "om_unauthorized",
        "The key is none of `auth.keys`; or an `X-OM-Token` is missing, too early, expired or "
        "for others; or `/om` is not open to you. The message says which",
        "401",
    ),
    _row(
        "om_too_slow",
        "Headers or body came too slowly (`limits.header_timeout`, `limits.body_timeout`). Try again",
        "408",
    ),
    _row(
        "om_too_large om_head_too_large",
        "The body is larger than `limits.body`; or the headers are larger than "
        "`limits.headers`, or more than 100. Send less, or raise the limit",
        "413, 431",
    ),
    _row(
        "om_unsupported",
        "The request is a WebSocket (426 on `/v1/responses`, whose clients then use HTTP), a "
        "`CONNECT`, or has a transfer coding other than `chunked`",
        "426, 501",
    ),
    _row(
        "om_overloaded",
        "Too many requests, bodies or connections came at once. Try again after `Retry-After`",
        "503",
    ),
    _row(
        "om_upstream_unreachable om_upstream_timeout",
        "The model server cannot be reached or read, or took longer than its `connect_timeout` "
        "or `read_timeout`. Look at the server and at its `base_url`",
        "502, 504",
    ),
    _row(
        "om_not_found om_bad_request om_bad_method om_bad_title om_bad_setting om_nothing_to_undo",
        "Below `/om`, `/metrics` and `/docs` only, which are never forwarded. Nothing there is "
        "yours, or the request cannot be done",
        "404, else 400",
    ),
    _row(
        "om_storage om_conflict om_config",
        "Below `/om` only; chat goes on. The store fails, others keep changing the thread, or "
        "the thread's own thresholds contradict the file's",
        "500",
    ),
)
