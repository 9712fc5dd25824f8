"""Examine how each webhook does, from what its sender has stored."""

from __future__ import annotations

from om_proxy.cli.doctor.upstreams import CREDENTIAL_STATUSES, REDIRECT_STATUSES, Finding
from om_proxy.engine.event_feed.envelope import name_hook, name_receiver
from om_proxy.engine.event_feed.webhooks import REQUEST_TIMEOUT_S
from om_proxy.settings.config import Settings
from om_proxy.storage.contract.records import EventLog
from om_proxy.storage.values.stored_events import MAX_EVENTS, WebhookState

UNKNOWN_ADDRESS_STATUSES = frozenset({404, 405, 410})


async def examine_webhooks(store: EventLog, settings: Settings) -> list[Finding]:
    """Return a finding for each hook of the settings. It names the hook by its place there, since
    several may be on one host, and no more of the address than host and port: it may hold a key."""
    findings = []
    for index, hook in enumerate(settings.telemetry.webhooks):
        state = await store.webhook_state(name_hook(hook.url))
        waiting = await count_waiting(store, state.cursor) if state else 0
        path = f"telemetry.webhooks[{index}]"
        findings.append(describe_webhook(path, name_receiver(hook.url), state, waiting))
    return findings


async def count_waiting(store: EventLog, cursor: int) -> int:
    """Return how many of the events that are kept come after this one."""
    return len((await store.events(None, None, cursor, MAX_EVENTS)).events)


def describe_webhook(path: str, receiver: str, state: WebhookState | None, waiting: int) -> Finding:
    """Describe how a hook does. `path`: its place in the settings; `receiver`: host and port."""
    hook = f"webhook {path} ({receiver})"
    if state is None:
        return Finding(True, f"{hook}: no server has run with it yet")
    if state.failures:
        return Finding(
            False,
            f"{hook}: {state.failures} failures in a row, the last one {state.cause}; "
            f"up to {waiting} events wait: {advise(path, state.cause)}",
        )
    return Finding(True, f"{hook}: its receiver takes events, up to {waiting} wait")


def advise(path: str, cause: str) -> str:
    """Say what to do about the cause that the sender has stored of a hook's last failure."""
    kind, _, status = cause.partition(" ")
    if kind == "status":
        return _advise_on_status(path, int(status))
    if cause in ("timeout", "ReadTimeout", "WriteTimeout"):
        return (
            f"no answer came within {REQUEST_TIMEOUT_S:.0f} s: check that the receiver is reached, "
            "and answers before it works on the event"
        )
    return f"no answer came: check that the receiver runs, and {path}.url"


def _advise_on_status(path: str, status: int) -> str:
    if status in CREDENTIAL_STATUSES:
        return f"the receiver refuses: check that it knows the secret of {path}"
    if status in REDIRECT_STATUSES:
        return f"a redirect is not followed: check {path}.url"
    if status in UNKNOWN_ADDRESS_STATUSES:
        return f"the receiver has no such address: check {path}.url"
    return "the receiver must answer 2xx: its own log may say why it does not"
