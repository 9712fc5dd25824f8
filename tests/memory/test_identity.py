"""Who is asking: every sentence of behaviour.md 2 that headers alone decide."""

import hashlib
import hmac

import pytest

from proxy.errors import BadRequest, Unauthorized
from proxy.memory.identity import LOCAL, Rules, fingerprint_key, identify

SECRET = b"s" * 32
RULES = Rules()


def headers(**named: str) -> list[tuple[bytes, bytes]]:
    return [(name.replace("_", "-").encode(), value.encode()) for name, value in named.items()]


def tenant_of(key: str) -> str:
    return hmac.new(SECRET, key.encode(), hashlib.sha256).hexdigest()


def test_thread_and_resource_name_the_memory() -> None:
    """The key is tenant, resource and thread, the tenant an HMAC of the credential."""
    caller = identify(headers(authorization="Bearer k", x_om_thread="t", x_om_resource="r"), RULES, SECRET)
    assert caller.key == (tenant_of("k"), "r", "t")
    assert (caller.mode, caller.history, caller.reason) == ("on", "auto", None)


def test_two_credentials_never_share_a_tenant() -> None:
    """The same thread under two API keys is two threads."""
    one, two = (identify(headers(authorization=f"Bearer {k}", x_om_thread="t"), RULES, SECRET) for k in ("a", "b"))
    assert one.key != two.key


def test_one_credential_is_one_tenant_in_whatever_header() -> None:
    """Authorization, x-api-key and api-key are three spellings of the same credential."""
    spellings = [
        headers(authorization="Bearer k"),
        headers(x_api_key="k"),
        headers(api_key="k"),
        headers(authorization="k"),
    ]
    assert {identify(h, RULES, SECRET).tenant for h in spellings} == {tenant_of("k")}


def test_a_resource_left_out_is_the_thread_itself() -> None:
    """A thread without a resource stands alone."""
    caller = identify(headers(x_om_thread="t"), RULES, SECRET)
    assert caller.key == (LOCAL, "t", "t")


@pytest.mark.parametrize(
    ("sent", "thread"),
    [
        ({"x_om_thread": "ours", "x_thread_id": "theirs"}, "ours"),
        ({"x_thread_id": "gateway"}, "gateway"),
        ({"x_openwebui_chat_id": "chat"}, "chat"),
        ({"x_om_thread": "", "x_thread_id": "second"}, "second"),
        ({"x_om_thread": "{{CHAT_ID}}", "x_thread_id": "second"}, "second"),
        ({"x_om_thread": "  "}, None),
        ({"x_om_thread": "a{{USER}}b"}, None),
    ],
)
def test_aliases_in_order(sent: dict[str, str], thread: str | None) -> None:
    """The first usable header counts; an empty value or an unfilled template is absent."""
    key = identify(headers(**sent), RULES, SECRET).key
    assert (key.thread if key else None) == thread


@pytest.mark.parametrize("value", ["a b", "ü".encode().decode("latin-1"), "x" * 257, "a\tb", "a,b", "a;b", "<t>"])
def test_a_bad_thread_is_refused(value: str) -> None:
    """A value outside the character set is a 400 that names the header, never a guess."""
    with pytest.raises(BadRequest, match="x-om-thread") as caught:
        identify([(b"x-om-thread", value.encode("latin-1"))], RULES, SECRET)
    assert caught.value.code == "om_bad_header"


def test_a_bad_alias_is_refused_beside_a_good_header() -> None:
    """A bad header is never passed over in silence."""
    with pytest.raises(BadRequest, match="x-thread-id"):
        identify(headers(x_om_thread="t", x_thread_id="a b"), RULES, SECRET)


def test_a_header_sent_twice_is_refused() -> None:
    """Two thread headers could mean two threads."""
    with pytest.raises(BadRequest, match="2 times"):
        identify([(b"x-om-thread", b"a"), (b"x-om-thread", b"b")], RULES, SECRET)


def test_two_different_credentials_are_refused() -> None:
    """Which of them would own the memory is not ours to guess."""
    with pytest.raises(BadRequest) as caught:
        identify(headers(authorization="Bearer a", x_api_key="b", x_om_thread="t"), RULES, SECRET)
    assert caught.value.code == "om_two_credentials"


def test_the_same_credential_twice_is_one() -> None:
    """Some clients send their key in two headers."""
    twice = identify(headers(authorization="Bearer a", x_api_key="a", x_om_thread="t"), RULES, SECRET)
    assert twice == identify(headers(authorization="Bearer a", x_om_thread="t"), RULES, SECRET)


@pytest.mark.parametrize(
    ("rules", "sent", "reason"),
    [
        (RULES, {}, "no-thread"),
        (Rules(loopback=False), {"x_om_thread": "t"}, "no-credential"),
        (Rules(memory=False), {"x_om_thread": "t"}, "disabled"),
        (RULES, {"x_om_thread": "t", "x_om_mode": "off"}, "mode-off"),
        (RULES, {"x_om_thread": "t", "x_om_task": "title_generation"}, "side-request"),
    ],
)
def test_no_memory_and_why(rules: Rules, sent: dict[str, str], reason: str) -> None:
    """Whoever gets no memory is told in one word."""
    caller = identify(headers(**sent), rules, SECRET)
    assert (caller.key, caller.reason) == (None, reason)


@pytest.mark.parametrize("mode", ["on", "read", "write"])
def test_modes_that_keep_a_memory(mode: str) -> None:
    """Every mode but off has a memory."""
    caller = identify(headers(x_om_thread="t", x_om_mode=mode.upper()), RULES, SECRET)
    assert caller.mode == mode
    assert caller.key


@pytest.mark.parametrize("name", ["x_om_mode", "x_om_history"])
def test_an_unknown_word_is_refused(name: str) -> None:
    """A misspelt mode must not silently mean the default."""
    with pytest.raises(BadRequest, match="must be one of"):
        identify(headers(x_om_thread="t", **{name: "sometimes"}), RULES, SECRET)


KEYED = Rules(keys=(("acme", "key-a"), ("globex", "key-b"), ("acme", "key-a2")))


@pytest.mark.parametrize(("key", "tenant"), [("key-a", "acme"), ("key-b", "globex"), ("key-a2", "acme")])
def test_configured_keys_name_the_tenant(key: str, tenant: str) -> None:
    """Several keys may belong to one tenant, so a key can be changed without losing the memory."""
    assert identify(headers(authorization=f"Bearer {key}"), KEYED, SECRET).tenant == tenant


@pytest.mark.parametrize(
    "sent", [{}, {"authorization": "Bearer wrong"}, {"authorization": "Bearer key-"}, {"x_api_key": ""}]
)
def test_an_unknown_key_is_refused(sent: dict[str, str]) -> None:
    """With keys configured nobody else gets through, and the answer does not echo what was sent."""
    with pytest.raises(Unauthorized) as caught:
        identify(headers(**sent), KEYED, SECRET)
    assert "wrong" not in str(caught.value)


@pytest.mark.parametrize(
    ("sent", "zone"), [("Europe/Berlin", "Europe/Berlin"), (" UTC ", "UTC"), ("", None), ("{{TIMEZONE}}", None)]
)
def test_timezone(sent: str, zone: str | None) -> None:
    """An IANA name; an empty value or an unfilled template is absent."""
    assert identify(headers(x_om_thread="t", x_om_timezone=sent), RULES, SECRET).timezone == zone


@pytest.mark.parametrize("sent", ["Mars/Olympus", "../etc/passwd", "/etc/passwd", "a\0b", "x" * 5_000])
def test_a_bad_timezone(sent: str) -> None:
    """What no clock knows is refused, and never looked for outside the zone table."""
    with pytest.raises(BadRequest, match="IANA") as caught:
        identify(headers(x_om_thread="t", x_om_timezone=sent), RULES, SECRET)
    assert sent not in str(caught.value)


def test_fingerprint_keys_differ_between_tenants() -> None:
    """Equal messages of two tenants never look equal."""
    assert fingerprint_key(SECRET, "a") != fingerprint_key(SECRET, "b")
