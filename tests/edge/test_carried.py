"""What an inherited memory call takes along of its request."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from om_proxy.edge import exchange
from om_proxy.wire.apis.request_members import Routing

PAGE = (Path(__file__).parents[2] / "docs/guides/security.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "is_carried"),
    [
        (b"authorization", True),
        (b"cf-access-client-id", True),
        (b"cf-access-client-secret", True),
        (b"x-openrouter-title", True),
        (b"x-llmgateway-country", True),
        (b"x-portkey-config", True),
        (b"x-hf-bill-to", True),
        (b"modal-key", True),
        (b"modal-secret", True),
        (b"x-vertex-ai-llm-request-type", True),
        (b"cookie", False),
        (b"traceparent", False),
        (b"x-stainless-lang", False),
        (b"x-om-thread", False),
        (b"idempotency-key", False),
    ],
)
def test_headers(name: bytes, is_carried: bool) -> None:
    """Those by which a gateway knows the caller go along. The client's own matters do not."""
    headers = [(name, b"value"), (b"x-other", b"value")]
    assert exchange.select_carried(headers) == tuple(headers[:1] if is_carried else ())


def test_the_page_names_all_that_goes_along() -> None:
    """And nothing else."""
    section = PAGE.partition("## What an inherited memory call carries")[2].partition("\n## ")[0]
    credential, body = (
        section.partition(start)[2].partition(end)[0]
        for start, end in (("- The credential", "- Of the body"), ("- Of the body", "\n\n"))
    )
    headers = (
        *exchange.CALLER_CREDENTIAL_HEADERS,
        *exchange.GATEWAY_HEADERS,
        *exchange.GATEWAY_HEADER_BEGINNINGS,
    )
    named = re.findall("`([^`]+)`", credential)
    assert {name.lower() for name in named} == {name.decode() for name in headers}
    assert set(re.findall("`([^`]+)`", body)) == set(Routing.__struct_encode_fields__)
