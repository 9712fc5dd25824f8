"""Records of an export that contradict themselves are refused, each with its place."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from om_proxy.common.errors import UsageError
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.whole_threads import list_keys
from tests.management.moving.test_importing import export, take
from tests.storage.moving_contract import store_eventful

LATER = 4_102_444_800.0  # the year 2100
HALF = {"base64": "YeKAnO2ggGI="}
RAW_HALF = {"base64": base64.b64encode(b'{"role":"user","content":"\xed\xa0\x80"}').decode()}
SAID = "run `om-proxy store verify --repair` on the store that it comes from"


@pytest.mark.parametrize(
    ("kind", "path", "value", "said"),
    [
        ("message", ("tokens",), -1, "message.tokens is not a number from 0 to 1e+09; " + SAID),
        ("message", ("tokens",), 10**9, "tokens 1000000000 are more than its"),
        ("message", ("seq",), 2**62, "message.seq is not a number from 0 to"),
        ("message", ("at",), 1e300, "message.at is not a number from 0 to"),
        ("message", ("at",), LATER, "message.at is not a time that has been"),
        ("message", ("fp",), "short", "message.fp is not a value of 16 to 16 bytes"),
        ("message", ("role",), "system", "message 11: role is not that of its JSON"),
        ("message", ("calls",), ["a"], "message 11: calls is not that of its JSON"),
        ("message", ("raw",), "{", "message 11 is not the JSON of a chat message"),
        ("message", ("raw",), "[]", "message 11 is not the JSON of a chat message"),
        ("message", ("raw",), '{"role":"user"}],"model":"x"', "is not the JSON of a chat message"),
        ("message", ("chain",), "0" * 16, "a chain does not follow from the messages before it"),
        ("message", ("parent",), 0, "a live message names another parent"),
        ("observation", ("tokens",), 10**8, "tokens 100000000 are more than its"),
        ("observation", ("after",), 10**6, "comes before after 1000000"),
        ("observation", ("last",), 10**6, "beyond next_seq"),
        ("observation", ("id",), 1, "two records of kind observation have one number"),
        ("observation", ("title",), "x" * 999, "observation.title is not a text without half"),
        ("observation", ("text",), HALF, "observation.text is not a text without half characters"),
        ("observation", ("task",), HALF, "observation.task is not a text without half characters"),
        ("observation", ("model",), HALF, "observation.model is not a text without half char"),
        ("reflection", ("text",), HALF, "reflection.text is not a text without half characters"),
        ("thread", ("model",), HALF, "thread.model is not a text without half characters"),
        ("thread", ("title",), HALF, "thread.title is not a text without half characters"),
        ("thread", ("other_threads_text",), HALF, "thread.other_threads_text is not a text"),
        ("message", ("role",), HALF, "message 11: role is not that of its JSON"),
        ("message", ("raw",), RAW_HALF, "message 11 is not the JSON of a chat message"),
        ("thread", ("ledger", "cached"), 10**15, "thread.ledger.cached is not a number from 0 to"),
        ("thread", ("ledger", "cached"), 10**12, ""),
        ("reflection", ("source_tokens",), -1, "reflection.source_tokens is not a number"),
        ("generation", ("number",), 10**6, "is not below log.next_generation"),
        ("thread", ("render_date",), 1e300, "thread.render_date is not a number"),
        ("thread", ("turn_at",), LATER, "thread.turn_at is not a time that has been"),
        ("thread", ("timezone",), "\x1b[31m", "thread.timezone is not a text without control"),
        ("thread", ("failures", "cause"), {"base64": "7aCA"}, "thread.failures.cause"),
        ("thread", ("failures", "retry_at"), -1, "thread.failures.retry_at is not a number"),
        ("thread", ("ledger", "full"), [-1], "thread.ledger.full"),
        ("thread", ("covered_count",), 1, "the counts of covered messages"),
        ("thread", ("next_seq",), 2**63 - 1, "thread.next_seq is not a number"),
        ("thread", ("next_id",), 1, "the next note would get a number that is in use"),
        ("thread", ("views",), [], ""),
    ],
    ids=lambda one: "".join(one) if isinstance(one, tuple) else str(one)[:20],
)
async def test_a_record_is_refused(
    tmp_path: Path, kind: str, path: tuple[str, ...], value: Any, said: str
) -> None:
    """With its line and field, and what to do; nothing is stored. The last case is none."""
    first, second = await SqliteStore.open(":memory:"), await SqliteStore.open(":memory:")
    try:
        await store_eventful(first)
        lines = await export(first)
        records = map(json.loads, lines)
        number = max(
            n
            for n, record in enumerate(records)
            if record["om"] == kind and record.get("state") != "interrupted"
        )
        record = json.loads(lines[number])
        place = record
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value
        lines[number] = json.dumps(record).encode() + b"\n"
        if not said:
            assert (await take(second, lines)).threads == 1
            return
        with pytest.raises(UsageError) as refused:
            await take(second, lines)
        assert said in str(refused.value)
        assert "line " in str(refused.value)
        assert not [key async for key in list_keys(second)]
    finally:
        await first.close()
        await second.close()
