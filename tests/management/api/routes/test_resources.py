"""Resources over HTTP: their threads, the log that these may share, and what memory saves there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.e2e.running import run_with_scripted_models
from tests.e2e.test_ledger import ask as say
from tests.management.api.routes.test_stats import get


async def test_a_resource_has_its_ledger(tmp_path: Path) -> None:
    """The list, page by page, and the resource itself have what the figures by resource say."""
    async with run_with_scripted_models(tmp_path) as run:
        for resource, count in (("ada", 1), ("bo", 2), ("cy", 3)):
            talk = run.chat("crates", **{"x-om-resource": resource})
            for number in range(count):
                await say(talk, f"Where is crate {number}?")
        await run.chat("crates", key="sk-b", **{"x-om-resource": "ada"}).say("Hello.")
        items = (await get(run, "/stats?by=resource"))["items"]
        by_name = {item["resource"]: item["ledger"] for item in items}
        assert [ledger["turns"] for ledger in by_name.values()] == [1, 2, 3]
        listed: list[dict[str, Any]] = []
        cursor = ""
        while cursor is not None:
            page = await get(run, f"/resources?limit=2&cursor={cursor}")
            listed += page["items"]
            cursor = page["cursor"]
        assert {line["resource"]: line["ledger"] for line in listed} == by_name
        for name, ledger in by_name.items():
            assert (await get(run, f"/resources/{name}"))["ledger"] == ledger
