"""What the doctor says of a client: what it needs, and what a server has counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from om_proxy.cli.doctor.clients import (
    CLIENT_NEEDS,
    describe_counts,
    examine_client,
)
from om_proxy.common.errors import UsageError
from om_proxy.settings.config import parse
from om_proxy.settings.identity.client_names import QUICKSTARTS, list_client_pages
from tests.support.free_port import free_port
from tests.support.upstream_server import run_upstream_server, script_answer

DOCS = Path(__file__).parents[3] / "docs"
METRICS = b"""# HELP om_requests_total Requests
om_requests_total{status="off",reason="no-thread",upstream="openai",api="messages",client="curl",route=""} 12.0
om_requests_total{status="off",reason="route",upstream="",api="chat",client="other",route="/v1/files"} 1.0
om_requests_total{status="applied",reason="",upstream="openai",api="chat",client="",route=""} 3.0
om_overhead_seconds_count 3.0
"""


def test_each_page_of_a_client_is_known() -> None:
    pages = {page.stem for page in (DOCS / "clients").glob("*.md")} - {"README", "servers"}
    assert pages == {*CLIENT_NEEDS} - {*QUICKSTARTS}
    assert all((DOCS / "quickstart" / f"{page}.md").is_file() for page in QUICKSTARTS.values())
    assert {*list_client_pages()} <= {*CLIENT_NEEDS}


@pytest.mark.parametrize("name", ["codex", "claude-code", "librechat"])
async def test_an_agent_is_a_client(name: str) -> None:
    needs, _ = await examine_client(name, parse(f"server: {{port: {free_port()}}}"))
    assert needs.works
    assert f"(docs/quickstart/{QUICKSTARTS[name]}.md)" in needs.text


def test_counts_have_the_meaning_of_their_reason() -> None:
    off, route, applied = describe_counts(METRICS.decode().splitlines())
    assert (off.works, applied.works) == (False, True)
    assert off.text.startswith("12 requests of curl by messages: off no-thread: ")
    assert route.text.startswith("1 request of other by /v1/files: off route: ")
    assert "names no thread" in off.text
    assert applied.text == "3 requests by chat: applied"


async def test_a_running_server_is_asked() -> None:
    async with run_upstream_server(script_answer(METRICS)) as server:
        port = server.base.removesuffix("/v1").rpartition(":")[2]
        needs, *counted = await examine_client("opencode", parse(f"server: {{port: {port}}}"))
    assert "it names its sessions by itself (docs/clients/opencode.md)" in needs.text
    assert len(counted) == 3


async def test_no_server_and_no_page() -> None:
    settings = parse(f"server: {{port: {free_port()}}}")
    _, finding = await examine_client("opencode", settings)
    assert not finding.works
    assert "no server answers at http://127.0.0.1:" in finding.text
    with pytest.raises(UsageError, match=r"there are .*langchain, "):
        await examine_client("opncode", settings)
