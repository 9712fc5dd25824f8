"""Find the Redis that tests may use, and give each test a prefix of its own in it.

`scripts/servers up` starts one and writes its address to `.servers/redis`; OM_TEST_REDIS_URL names
another. No other server is ever touched. Without any, these tests are skipped, loudly; where
OM_TEST_SERVERS is `required`, as in CI, they fail.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ADDRESS_FILE = Path(__file__).parents[2] / ".servers" / "redis"
HOW_TO_START = "no Redis to test with: start one with `scripts/servers up`"


def find_redis_url() -> str:
    """Return the address of the server. Skip the test where there is none, or fail it."""
    url = os.environ.get("OM_TEST_REDIS_URL", "")
    if not url and ADDRESS_FILE.exists():
        url = ADDRESS_FILE.read_text(encoding="utf-8").strip()
    if url:
        return url
    if os.environ.get("OM_TEST_SERVERS") == "required":
        pytest.fail(HOW_TO_START)
    pytest.skip(HOW_TO_START)


@contextmanager
def own_prefix(url: str) -> Iterator[str]:
    """Yield a prefix whose keys are deleted afterwards."""
    import redis  # of the few tests that have a server

    prefix = f"om_test_{secrets.token_hex(6)}"
    try:
        yield prefix
    finally:
        with redis.Redis.from_url(url) as client:
            keys = list(client.scan_iter(f"{prefix}:*", count=10_000))
            if keys:
                client.delete(*keys)
