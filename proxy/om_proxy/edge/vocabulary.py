"""Every word that a client can meet, with its meaning: headers, statuses, reasons, error codes.

`scripts/reference` makes the pages in docs/reference from these lists. tests/test_docs.py compares
the lists with the code that uses the words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from om_proxy.common.reasons import Reason, Status
from om_proxy.observability.figures.fact_counter import REFUSED_REASON


@dataclass(frozen=True, slots=True)
class Row:
    """Names that share one meaning. `sent_with`: the statuses or HTTP codes they come with. `advice`:
    what to do about it, and `page`: the page that helps."""

    names: tuple[str, ...]
    sent_with: str
    meaning: str
    advice: str = ""
    page: str = "docs/guides/troubleshooting.md"


def _create_row(names: str, meaning: str, sent_with: str = "") -> Row:
    return Row(tuple(names.split()), sent_with, meaning)


def _create_reason_row(
    names: Sequence[Reason], meaning: str, *sent_with: Status, **help: str
) -> Row:
    """Create a row of `REASON_ROWS`. A reason without a status is only logged, never sent."""
    return Row(tuple(names), " ".join(sent_with), meaning, **help)


REQUEST_HEADER_ROWS = (
    _create_row(
        "X-OM-Thread",
        "The conversation. Where nothing names one, om-proxy touches nothing. A used id "
        "continues its old conversation: a new one needs a new id. Also taken: `x-thread-id`, "
        "`X-OpenWebUI-Chat-Id`",
    ),
    _create_row(
        "X-OM-Resource",
        "The owner of the conversation: a user, an agent. Also taken: `x-resource-id`, "
        "`X-OpenWebUI-User-Id`",
    ),
    _create_row(
        "X-OM-Mode",
        "`on`, `read` (inject, store nothing), `write` (store, inject nothing), `off`",
    ),
    _create_row(
        "X-OM-History",
        "What the messages are, where guessing is not good enough: `auto`, `full` (what is not "
        "sent no longer exists), `window`, `new` (every message is new)",
    ),
    _create_row(
        "X-OM-Scope",
        "`thread` or `resource`, in place of the configured scope. It has an effect only with "
        "`identity.scope_override`",
    ),
    _create_row(
        "X-OM-Authorization",
        "A key of `auth.keys`, where `Authorization` or `x-api-key` holds the provider's own. Also taken: "
        "`X-Memory-Gateway-Authorization`",
    ),
    _create_row(
        "X-OM-Token",
        "The user's resource and thread, signed by your application; only with "
        "`auth.token_secret`. `om-proxy token` makes one",
    ),
    _create_row(
        "X-OM-Timezone",
        "The user's time zone, as an IANA name such as `Europe/Berlin`, for the dates in "
        "observations and prompts. It is kept with the thread. Without it, `memory.timezone` "
        "holds",
    ),
    _create_row(
        "X-OM-Events",
        "`inline`: a stream begins with comments about the thread's memory. `inline,text`: with "
        "the texts of notes. Any other value is ignored",
    ),
    _create_row(
        "X-OM-Task",
        "Anything but an unfilled `{{template}}` marks a side request (titles, tags), which "
        "has no memory",
    ),
)

RESPONSE_HEADER_ROWS = (
    _create_row(
        "x-om-status",
        "`off`, `raw` (memory is on, and there is nothing to rewrite yet), `applied`, "
        "`degraded` (memory could not do all it should; the reason says what)",
    ),
    _create_row(
        "x-om-reason",
        "One word, where there is something to explain: see [reasons](reasons.md)",
    ),
    _create_row(
        "x-om-thread",
        "The thread the request was taken for, percent-encoded where it must be",
    ),
    _create_row(
        "x-om-tokens-received x-om-tokens-sent",
        "The prompt as you sent it, and as it went upstream",
    ),
    _create_row(
        "x-om-tokens-shadow",
        "In shadow mode, the prompt that memory would have sent, if it is known in time",
    ),
    _create_row(
        "x-om-pending-tokens x-om-observation-tokens x-om-chunks x-om-generation",
        "The raw tail, the log, the buffered chunks, and the version of the log",
    ),
    _create_row(
        "x-om-recall",
        "With `memory.retrieval` on and notes in the prompt: `offered`, or why the model does not "
        "get the tool: `n`, `functions`, `name`, `refused`, `api`; with `retrieval: auto` also `json`, `unsure`",
    ),
    _create_row(
        "x-om-recall-steps",
        "In how many rounds the model looked up earlier messages; not for streams",
    ),
    _create_row(
        "x-om-overhead-ms",
        "The time om-proxy took before it forwarded the request, including the wait for an "
        "observation",
    ),
)

REASON_ROWS = (
    _create_reason_row(
        [Reason.NO_THREAD],
        "The request names no thread. The bytes passed through",
        Status.OFF,
        advice="Send `X-OM-Thread`, or use a base URL with `/t/NAME/v1`",
        page="docs/clients/README.md",
    ),
    _create_reason_row(
        [Reason.ROUTE],
        "The request names a thread, or a coding agent's session, and its route has no memory. The bytes passed through, and "
        "the log warned once for each client and route, at most 20 times a minute",
        Status.OFF,
        advice="Let the client post to a route with memory",
        page="docs/clients/README.md",
    ),
    _create_reason_row(
        [Reason.NO_CREDENTIAL],
        "The request has no API key, and one of three things holds: (a) the server listens "
        "beyond loopback; (b) a web page of another site asks, or the `Host` is not this "
        "machine's; (c) a reverse proxy forwards it, and does not say that it comes from this "
        "machine. It has no memory",
        Status.OFF,
        advice="Let the client send its key",
    ),
    _create_reason_row(
        [Reason.DISABLED, Reason.MODE_OFF],
        "`memory: false`, or `X-OM-Mode: off`",
        Status.OFF,
        advice="If it should remember, set `memory: true` for this model, or leave `X-OM-Mode: off` out",
        page="docs/guides/configuration.md",
    ),
    _create_reason_row(
        [Reason.SIDE_REQUEST],
        "A request for a title, tags or a follow-up has no memory. In a thread whose newest "
        "turn offered tools, the same holds for a request without tools that repeats nothing of "
        "the thread, such as a message from another device. With `X-OM-History: new` it is a "
        "message all the same",
        Status.OFF,
        advice="Nothing: such requests need none",
        page="docs/concepts/threads-and-resources.md",
    ),
    _create_reason_row(
        [Reason.UNREADABLE],
        "om-proxy cannot read the body, or one of its messages, as a chat request. The model "
        "server judges it",
        Status.OFF,
        Status.DEGRADED,
        advice="Look at the model server's answer; it judges the body",
    ),
    _create_reason_row(
        [Reason.NO_MESSAGES],
        "The request holds instructions alone",
        Status.OFF,
        advice="Nothing: there is nothing to remember",
    ),
    _create_reason_row(
        [Reason.SERVER_STATE],
        "A request goes on from what the model server alone holds: an unknown `previous_response_id` or "
        "`item_reference`, `conversation`, `thread`, or instructions in the `input` of a chain (`raw`). "
        "The bytes passed through",
        Status.OFF,
        Status.RAW,
        advice="Let the client send its history in place of an id",
        page="docs/clients/README.md",
    ),
    _create_reason_row(
        [Reason.BACKGROUND],
        "`background: true`: the reply comes by another request. The bytes passed through",
        Status.OFF,
        advice="Leave `background: true` out, if it should remember",
        page="docs/clients/README.md",
    ),
    _create_reason_row(
        [Reason.COMPACTION],
        "The request asks the model server to shorten the conversation (`off`), or holds what that "
        "made (`raw`)",
        Status.OFF,
        Status.RAW,
        advice="Switch the client's own compaction off",
        page="docs/clients/README.md",
    ),
    _create_reason_row(
        [Reason.CODING_AGENT],
        "A coding agent keeps its own context: its turns are stored and observed, and its prompt "
        "stays",
        Status.RAW,
    ),
    _create_reason_row(
        [Reason.WRITE_ONLY],
        "`X-OM-Mode: write`, or `memory.mode: shadow`",
        Status.RAW,
    ),
    _create_reason_row(
        [Reason.NO_OBSERVER],
        "The request's credential belongs to a subscription (`sk-ant-oat…`), which no memory call may "
        "use, and `memory.model` is `auto` or `inherit`. Messages are stored, and no notes are made: "
        "set `memory.model` to a model with a key of its own",
        Status.RAW,
        Status.APPLIED,
    ),
    _create_reason_row(
        [Reason.OBSERVER_FAILING],
        "The observer model fails. What it could not observe is sent raw. om-proxy tries again "
        "after 1 minute, doubling to 6 hours; after 8 failures in a row when `om-proxy doctor "
        "--revive` says so",
        Status.RAW,
        Status.APPLIED,
    ),
    _create_reason_row(
        [Reason.OBSERVER_LATE],
        "The request should have waited for an observation, and goes out without it. Either the "
        "observation was not ready in time, another request had waited for the same call, the "
        "observer failed and is tried again later, or the server was too busy to wait. The "
        "notes come later",
        Status.RAW,
        Status.APPLIED,
    ),
    _create_reason_row(
        [Reason.FORK_NOT_WAITED],
        "The observation that was due covers messages that replace others. Those are stored "
        "only with their reply",
        Status.RAW,
        Status.APPLIED,
    ),
    _create_reason_row(
        [Reason.ECONOMY],
        "`memory.economy: auto`: notes are due, and wait until they are expected to save what "
        "they cost",
        Status.RAW,
        Status.APPLIED,
    ),
    _create_reason_row(
        [Reason.TAIL_LIMIT],
        "Raw messages beyond `context.tail_limit` were left out of this prompt",
        Status.DEGRADED,
    ),
    _create_reason_row(
        [Reason.TOOL_PAIRS],
        "The rewritten prompt would have parted tool calls and results, a fault of om-proxy. Your own "
        "request was sent, or, if it lacks the conversation, a prompt without these messages",
        Status.DEGRADED,
    ),
    _create_reason_row(
        [Reason.UPSTREAM_REFUSED],
        "The model server refused the rewritten prompt, so the original was sent. If the original "
        "lacks the conversation, the refusal is the answer",
        Status.DEGRADED,
    ),
    _create_reason_row(
        [Reason.CONTEXT_OVERFLOW],
        "The prompt was too long for the model. Older messages were observed while you waited. "
        "Either a shorter prompt was sent (`applied`), or none could be made (`degraded`) and "
        "the refusal is the model server's",
        Status.APPLIED,
        Status.DEGRADED,
    ),
    _create_reason_row(
        [Reason.REPLY_TOO_LARGE],
        "The reply was relayed and not remembered: it was above 64 MiB, or `limits.memory` had "
        "no room. This word is in the log alone, because the receipt goes out before the reply",
    ),
    _create_reason_row(
        [Reason.STORAGE],
        "The store fails. New turns wait in memory and are in the next prompts of their thread. "
        "Where the thread cannot be read, the original was sent, and the turn is stored later",
        Status.DEGRADED,
    ),
    _create_reason_row(
        [Reason.MEMORY_SLOW, Reason.MEMORY_ERROR, Reason.CONFLICT],
        "Memory took too long or failed: the original was sent, and the turn is stored later",
        Status.DEGRADED,
    ),
)


REFUSED_ROW = Row(
    (REFUSED_REASON,),
    Status.OFF,
    "The proxy refused it, and the client was told why",
    "Look at the client's error message",
)


def explain_reason(reason: str) -> str:
    """Return what a reason means and what to do about it; "" for a word that is none."""
    for row in (*REASON_ROWS, REFUSED_ROW):
        if reason in row.names:
            return f"{row.meaning}. {row.advice}" if row.advice else row.meaning
    return ""


ERROR_CODE_ROWS = (
    _create_row(
        "om_bad_header om_two_credentials",
        "A header of identity has no valid meaning, or there are two different keys. Send the "
        "one that is meant",
        "400",
    ),
    _create_row(
        "om_no_resource",
        "`scope: resource` holds, and no resource is named. Send `X-OM-Resource`",
        "400",
    ),
    _create_row(
        "om_no_upstream",
        "No server for the request's API has a `match` that fits the model; or there are several, and "
        "the model's name cannot be read. Correct the name, or add a server under `upstream`",
        "400",
    ),
    _create_row(
        "om_bad_http om_bad_host om_bad_path",
        "The request cannot be read as HTTP/1.1; or it does not have one plain `Host`; or its "
        "path has empty, `..` or encoded separator segments, or a thread prefix that names no "
        "thread. Correct the client",
        "400",
    ),
    _create_row(
        "om_unauthorized",
        "The key is none of `auth.keys`; or an `X-OM-Token` is missing, too early, expired or "
        "for others; or `/om` is not open to you. The message says which",
        "401",
    ),
    _create_row(
        "om_forbidden",
        "`upstream.api_key` or the key of a memory model would pay, `auth.keys` is not set, and the "
        "request comes from another site's page, from elsewhere, under another host name, or beyond "
        "loopback without a credential: set `auth.keys`, and send one of them. Below `/om`: the route shows nothing but text, and "
        "`server.admin_reads: false` hides text from the admin token; or `X-OM-Token` does not open "
        "a route about others too: `/import`, `/audit`, `/receipts`, a list if it names a thread",
        "403",
    ),
    _create_row(
        "om_too_slow",
        "Headers or body came too slowly (`limits.header_timeout`, `limits.body_timeout`). Try "
        "again",
        "408",
    ),
    _create_row(
        "om_too_large om_head_too_large",
        "The body is larger than `limits.body`; or the headers are larger than "
        "`limits.headers`, or more than 100. Send less, or raise the limit",
        "413, 431",
    ),
    _create_row(
        "om_unsupported",
        "The request is a WebSocket (426 on `/v1/responses`, whose clients then use HTTP), a "
        "`CONNECT`, or has a transfer coding other than `chunked`",
        "426, 501",
    ),
    _create_row(
        "om_overloaded",
        "Too many requests, bodies, connections or searches came at once. Try again after "
        "`Retry-After`",
        "503",
    ),
    _create_row(
        "om_upstream_unreachable om_upstream_timeout",
        "The model server cannot be reached or read, or took longer than its `connect_timeout` "
        "or `read_timeout`. Look at the server and at its `base_url`",
        "502, 504",
    ),
    _create_row(
        "om_not_found om_bad_request om_bad_title om_bad_text om_bad_setting om_nothing_to_undo "
        "om_too_many_pins om_nothing_to_observe om_no_model",
        "Below `/om`, `/metrics`, `/docs` and for `/favicon.ico` only, which are never forwarded. Nothing there is "
        "yours, or the request cannot be done",
        "404, else 400",
    ),
    _create_row(
        "om_bad_method", "Below `/om` only. The path has other methods: `Allow` names them", "405"
    ),
    _create_row(
        "om_storage",
        "The store fails. Try again. Chat goes on; only with `storage.on_down: 503` it gets this too, "
        "if the client sends just its newest message",
        "503",
    ),
    _create_row(
        "om_conflict",
        "Below `/om` only. The thread has changed since the version of `If-Match`, or others keep "
        "changing it. Read it again, then repeat the change",
        "409",
    ),
    _create_row(
        "om_unproductive",
        "Below `/om` only. The notes did not become shorter, and stay",
        "422",
    ),
    _create_row(
        "om_model_failed",
        "Below `/om` only. The memory model failed at what was asked for; the message names the cause",
        "502",
    ),
    _create_row(
        "om_moved",
        "Below `/om` only. The entry or chunk was changed, condensed or made active: `entry` in the "
        "error is the id that holds its notes now",
        "409",
    ),
    _create_row(
        "om_config",
        "Below `/om` only. The thread's own thresholds contradict the file's",
        "500",
    ),
)
