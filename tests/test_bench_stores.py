"""The benchmark of the stores measures each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.stores import COVERED_EVERY, Addresses, Asked, print_result, run
from tests.support.postgres_server import find_postgres_url, own_schema
from tests.support.redis_server import find_redis_url, own_prefix


async def test_each_store_has_every_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a round of few turns."""
    url, redis_url = find_postgres_url(), find_redis_url()
    asked = Asked(rounds=1, turns=COVERED_EVERY, crowd_turns=1, due=320)
    with own_schema(url) as schema, own_prefix(redis_url) as prefix:
        result = await run(asked, Addresses(url, schema, redis_url, prefix), tmp_path)
    print_result(result, asked)
    header, _, *rows = capsys.readouterr().out.splitlines()
    assert header == "| | SQLite | PostgreSQL | Redis |"
    for figure in (" SELECT 1 ", "with storage.prepared", "Redis: "):
        assert any(figure in row for row in rows)
    assert result.redis_bytes > result.json_bytes >= 60_000
    cells = [row.strip("| ").split(" | ") for row in rows if row.startswith("|")]
    assert [len(row) for row in cells] == [4] * len(cells)
    assert all(float(figure) > 0 for _, *figures in cells for figure in figures)
