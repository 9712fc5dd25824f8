"""`scripts/bench rekey` measures each store. Nothing is timed here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.rekey import list_places, run
from tests.support.postgres_server import find_postgres_url, own_schema
from tests.support.redis_server import find_redis_url, own_prefix


async def test_every_store_wraps_all_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """More than one batch has; afterwards the older master key opens nothing."""
    postgres, redis = find_postgres_url(), find_redis_url()
    with own_schema(postgres) as schema, own_prefix(redis) as prefix:
        figures = await run(list_places(tmp_path, postgres, schema, redis, prefix), 5_001)
    assert [one.keys for one in figures] == [5_001] * 3
    assert len(capsys.readouterr().out.splitlines()) == 5
