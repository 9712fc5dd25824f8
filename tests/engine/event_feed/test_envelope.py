"""An event as it is sent: in ASCII on one line, with or without text."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import get_args

import pytest
from standardwebhooks import WebhookVerificationError

from om_proxy import __version__
from om_proxy.engine.event_feed.envelope import (
    HookRequest,
    compute_pause_s,
    name_hook,
    name_receiver,
    select_types,
    write_data,
    write_event,
    write_gap,
    write_headers,
    write_request,
)
from om_proxy.memory.events.parts import EVENT_TYPES, StoredPart
from om_proxy.memory.model import Key
from om_proxy.storage.values.records import StoredEvent

HOSTILE = "a\r\n\r\nid: 9\nevent: x\ndata: y\u2028\x85\ud800\0<script>"
CLASSES = {part.TYPE: part for part in get_args(StoredPart)}


def make(type_: str = "data-om-activation") -> StoredEvent:
    data = dict.fromkeys((*CLASSES[type_].TEXT_FIELDS, "kept"), HOSTILE)
    key = Key("tenant", HOSTILE, HOSTILE)
    return StoredEvent(7, key, 1.5, type_, json.dumps(data))


def test_names_and_texts_cannot_end_the_line() -> None:
    """Whatever a thread is called, and whatever was said."""
    text = write_event(make(), with_text=True)
    assert text.isascii()
    assert text.isprintable()
    event = json.loads(text)
    assert (event["id"], event["at"], event["tenant"]) == ("7", 1.5, "tenant")
    assert event["thread"] == event["data"]["observations"] == HOSTILE


@pytest.mark.parametrize("type_", EVENT_TYPES)
def test_texts_are_left_out(type_: str) -> None:
    """Only the fields that hold text become null; a field that is not there stays away."""
    event = make(type_)
    assert write_data(event, with_text=True) is event.data
    hidden = json.loads(write_data(event, with_text=False))
    assert hidden == dict.fromkeys(CLASSES[type_].TEXT_FIELDS, None) | {"kept": HOSTILE}
    assert json.loads(write_data(event._replace(data="{}"), with_text=False)) == {}


def test_types_are_selected() -> None:
    one, other = make(), make("data-om-edited")
    assert select_types([one, other], frozenset()) == [one, other]
    assert select_types([one, other], frozenset({other.type})) == [other]


def test_an_unknown_type_is_sent_without_its_data() -> None:
    """A newer replica wrote it: which of its fields hold words is not known here."""
    event = make()._replace(type="data-om-of-tomorrow", data='{"words":"canary"}')
    assert write_data(event, with_text=False) == "null"
    assert json.loads(write_event(event, with_text=False))["data"] is None
    assert write_data(event, with_text=True) is event.data


SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER_SECRET = "whsec_YW5vdGhlciBrZXkgb2YgMjQgYnl0ZXMh"
EVENT = StoredEvent(
    7, Key("t", "r", "n\n"), 1.5, "data-om-activation", '{"observations":"* noted","cycleId":"c"}'
)
GUIDE = Path(__file__).parents[3] / "docs" / "contributing" / "seeing.md"


@pytest.mark.parametrize("with_text", [True, False])
def test_the_body(with_text: bool) -> None:
    request = write_request(EVENT, with_text=with_text)
    event = json.loads(request.body)
    assert (request.id, event["id"], request.type) == ("7", "7", "data-om-activation")
    assert event["data"]["observations"] == ("* noted" if with_text else None)


def test_the_check_in_the_documents() -> None:
    """The published verifier accepts what we send, and nothing that was changed."""
    section = GUIDE.read_text("utf-8").split("## Webhooks")[1]
    (code,) = re.findall(r"```python\n(.*?)```", section, flags=re.S)
    namespace: dict[str, object] = {}
    exec(compile(code, "seeing.md", "exec"), namespace)  # noqa: S102 # the page's own example
    read_event = namespace["read_event"]
    assert callable(read_event)
    now = time.time()
    request = write_request(EVENT, with_text=False)
    headers = write_headers(request, SECRET, now)
    assert read_event(SECRET, headers, request.body)["id"] == "7"
    later = {"webhook-timestamp": str(int(now) + 1)}
    for secret, changed, body in (
        (OTHER_SECRET, headers, request.body),
        (SECRET, headers, request.body + b" "),
        (SECRET, headers | later, request.body),
        (SECRET, headers | {"webhook-id": "8"}, request.body),
        (SECRET, write_headers(request, SECRET, now - 400), request.body),  # sent again, later
    ):
        with pytest.raises(WebhookVerificationError):
            read_event(secret, changed, body)


def test_the_example_of_the_specification() -> None:
    """Its signature is known, so other languages' verifiers take ours too."""
    request = HookRequest("msg_p5jXN8AQM9LWM0D4loKWxJek", "", b'{"test": 2432232314}')
    assert write_headers(request, SECRET, 1_614_265_330.5) == {
        "content-type": "application/json",
        "user-agent": f"om-proxy/{__version__}",
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_no_header_holds_a_name_or_the_secret() -> None:
    headers = write_headers(write_request(EVENT, with_text=True), SECRET, 1_000.0)
    assert all(value.isascii() and value.isprintable() for value in headers.values())
    assert SECRET not in str(headers)
    assert "n\n" not in str(headers)


def test_a_gap_has_an_id_of_its_own() -> None:
    gap = write_gap(12)
    assert json.loads(gap.body) == {"id": "gap-12", "type": "om-gap"}


@pytest.mark.parametrize(("failures", "pause_s"), [(1, 1), (2, 2), (6, 32), (7, 60), (10_000, 60)])
def test_pauses_grow_to_a_minute(failures: int, pause_s: float) -> None:
    assert compute_pause_s(failures, 0.0) == pause_s
    assert compute_pause_s(failures, 0.8) == pause_s * 1.2


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://hooks.example/in?key=canary", "hooks.example:443"),
        ("http://hooks.example/canary", "hooks.example:80"),
        ("http://[::1]:8080/", "[::1]:8080"),
    ],
)
def test_a_receiver_is_named_by_host_and_port(url: str, name: str) -> None:
    assert name_receiver(url) == name


def test_a_hook_is_named_by_a_hash() -> None:
    assert "key" not in name_hook("https://x/?key=1")
    assert name_hook("https://x/?key=1") != name_hook("https://x/?key=2")
