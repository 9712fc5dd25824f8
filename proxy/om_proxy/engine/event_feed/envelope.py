"""Write an event as it is sent: its data as stored, with its id and its names around it. To a
webhook it is sent signed."""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import b64encode
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

from om_proxy import __version__
from om_proxy.settings.config.sections.section import read_webhook_secret
from om_proxy.storage.shared.event_encoding import remove_texts
from om_proxy.storage.values.records import StoredEvent


def write_data(event: StoredEvent, *, with_text: bool) -> str:
    """Return the event's data as JSON in ASCII. Without text, the fields with words of a
    conversation are null, and so is all data of a type that only a newer release knows."""
    return event.data if with_text else remove_texts(event.type, event.data)


def write_event(event: StoredEvent, *, with_text: bool) -> str:
    """Return the whole event as JSON in ASCII. It holds no line break."""
    key = event.key
    head = write_ascii(
        {
            "id": str(event.id),
            "at": event.at,
            "tenant": key.tenant,
            "resource": key.resource,
            "thread": key.thread,
            "type": event.type,
        }
    )
    return f'{head[:-1]},"data":{write_data(event, with_text=with_text)}}}'


def write_ascii(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def select_types(events: Iterable[StoredEvent], types: frozenset[str]) -> list[StoredEvent]:
    """Return the events of these types; an empty set means all."""
    return [event for event in events if not types or event.type in types]


# Write the request by which an event is sent to a webhook, and sign it.
#
# It has the form of https://www.standardwebhooks.com: the signature is an HMAC-SHA256 under the hook's
# secret, over id, time and body, so that nobody else can send an event, and none can be sent again
# later (docs/contributing/seeing.md#webhooks).


GAP_TYPE = "om-gap"
FIRST_PAUSE_S = 1.0  # after the first failure; each further failure doubles it
MAX_PAUSE_S = 60.0  # so that a receiver that is back waits no longer


class HookRequest(NamedTuple):
    """One event on its way to a receiver."""

    id: str
    type: str
    body: bytes


def write_request(event: StoredEvent, *, with_text: bool) -> HookRequest:
    body = write_event(event, with_text=with_text).encode()
    return HookRequest(str(event.id), event.type, body)


def write_gap(cursor: int) -> HookRequest:
    """Return the notice that events after `cursor` are no longer kept."""
    id_ = f"gap-{cursor}"
    return HookRequest(id_, GAP_TYPE, write_ascii({"id": id_, "type": GAP_TYPE}).encode())


def write_headers(request: HookRequest, secret: str, now: float) -> dict[str, str]:
    """Return the headers, with a signature made now: a repeated request has a new one. `secret`: as
    the settings have it, which `read_webhook_secret` has checked."""
    timestamp = str(int(now))
    return {
        "content-type": "application/json",
        "user-agent": f"om-proxy/{__version__}",
        "webhook-id": request.id,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{sign(secret, request, timestamp)}",
    }


def sign(secret: str, request: HookRequest, timestamp: str) -> str:
    signed = f"{request.id}.{timestamp}.".encode() + request.body
    return b64encode(hmac.digest(read_webhook_secret(secret), signed, "sha256")).decode()


def name_hook(url: str) -> str:
    """Return the name by which the store knows a hook: no address, which may hold a key."""
    return hashlib.sha256(url.encode()).hexdigest()[:32]


def name_receiver(url: str) -> str:
    """Return the host and port of a hook's address for people, and no more: it may hold a key."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def compute_pause_s(failures: int, jitter: float) -> float:
    """Return how long to wait after so many failures in a row. `jitter` in [0, 1)."""
    return min(FIRST_PAUSE_S * 2.0 ** min(failures - 1, 16), MAX_PAUSE_S) * (1 + jitter / 4)
