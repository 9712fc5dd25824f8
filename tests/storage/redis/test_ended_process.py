"""A process that ends anywhere in its work on a Redis. A script happens as a whole."""

from __future__ import annotations

import pytest

from om_proxy.storage.redis import removal
from om_proxy.storage.redis.log_rewriting import LogRewriter
from om_proxy.storage.redis.session import Session
from tests.storage.ended_process_contract import EndedProcessContract


@pytest.fixture(autouse=True)
def no_rewriting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log's rewriting asks the server beside the work."""
    monkeypatch.setattr(LogRewriter, "start", lambda _: None)


class TestRedisEndedProcess(EndedProcessContract):
    """The contract under a prefix of its own."""

    methods = (Session, "call", "_call_some")
    removal = removal
