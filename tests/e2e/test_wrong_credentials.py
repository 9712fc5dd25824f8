"""Wrong keys and tokens leave a trace: a number on `/metrics`, and one line of the log a minute."""

from __future__ import annotations

import time
from pathlib import Path

from om_proxy.settings.identity.user_token import Claims, sign_claims
from tests.e2e.raw_upstream import ProxyUnderTest, chat_body, run_with_raw_upstream
from tests.e2e.written import collect_log_lines

ADMIN = "admin-0123456789abcdef"
SIGNING = "0123456789abcdef0123456789abcdef"
SETTINGS = f"""
            server: {{admin_token: {ADMIN}}}
            auth: {{token_secret: {SIGNING}, keys: [{{tenant: acme, key: sk-acme}}]}}
"""
OWN = b"Authorization: Bearer sk-acme"
THREAD = b"X-OM-Thread: t"
GUESSES = 30


def sign(secret: str, ends_in_s: float) -> bytes:
    claims = Claims(resource="r", exp=time.time() + ends_in_s, tenant="acme")
    return b"X-OM-Token: " + sign_claims(claims, secret.encode()).encode()


async def read_refused(site: ProxyUnderTest) -> dict[str, float]:
    got = await site.ask(b"", b"X-OM-Admin: " + ADMIN.encode(), method="GET", path="/metrics")
    lines = [line.split() for line in got.body.decode().splitlines() if not line.startswith("#")]
    return {
        name.partition('kind="')[2].removesuffix('"}'): float(value)
        for name, value in lines
        if name.startswith("om_credentials_refused_total")
    }


async def test_a_guesser_leaves_a_trace(tmp_path: Path) -> None:
    """On every route that takes one. Neither the log nor the numbers hold what was sent. What is
    missing or expired is nobody's guess."""
    wrong_admin, wrong_key = b"X-OM-Admin: guess-1", b"Authorization: Bearer guess-2"
    wrong_token = sign("guess-3".ljust(32, "x"), 60)
    json = b"Content-Type: application/json"
    with collect_log_lines() as out:
        async with run_with_raw_upstream(tmp_path, SETTINGS) as site:
            for _ in range(GUESSES):
                for asked, status in (
                    (site.ask(b"", wrong_admin, method="GET", path="/om/v1/threads"), 401),
                    (site.ask(b"{}", wrong_admin, json, path="/om/mcp"), 401),
                    (site.ask(b"", wrong_key, method="GET", path="/om/v1/threads"), 401),
                    (site.ask(b"", wrong_key, method="GET", path="/metrics"), 401),
                    (site.ask(b"", wrong_key, method="GET", path="/v1/models"), 401),
                    (site.ask(chat_body("hi"), wrong_key, THREAD), 401),
                    (site.ask(chat_body("hi"), OWN, THREAD, wrong_token), 401),
                ):
                    assert (await asked).status == status
            for asked in (
                site.ask(b"", method="GET", path="/v1/models"),
                site.ask(chat_body("hi"), OWN, THREAD, sign(SIGNING, -60)),
            ):
                assert (await asked).status == 401
            assert await read_refused(site) == {
                "admin": 2 * GUESSES,
                "key": 3 * GUESSES,
                "metrics": GUESSES,
                "token": GUESSES,
            }
    refused = out.events("credential.refused")
    assert sorted(line["kind"] for line in refused) == ["admin", "key", "metrics", "token"]
    assert "guess-" not in out.text
