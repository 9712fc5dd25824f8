"""Lines of the ledger that another release has written."""

from __future__ import annotations

import pytest
import redis

from om_proxy.memory.ledger import Account
from om_proxy.storage.values.records import LedgerBatch, LedgerLine, LedgerQuery
from tests.storage.contract import Opener

COUNT = len(Account.__struct_fields__)
LINE = LedgerLine("t", "", 20_000, "m", "actor", "full")
ONES = Account(*[1] * COUNT)


@pytest.mark.parametrize("stored", [COUNT - 2, COUNT, COUNT + 1], ids=["older", "this", "newer"])
async def test_lines_of_other_releases_are_added_to(
    opener: Opener, url: str, prefix: str, stored: int
) -> None:
    """A sum that they lack is 0 before; one that only they have stays as it is."""
    store = await opener()
    await store.add_to_ledger(LedgerBatch("w", 1, {LINE: ONES}))
    with redis.Redis.from_url(url) as server:
        (name,) = server.scan_iter(f"{prefix}*:ledger:*")
        ((field, _),) = server.hgetall(name).items()
        server.hset(name, field, " ".join(["7"] * stored))
        (found,) = await store.sum_ledger(LedgerQuery("t", "day"))
        assert found.account == Account(*[7] * min(stored, COUNT))
        await store.add_to_ledger(LedgerBatch("w", 2, {LINE: ONES}))
        (found,) = await store.sum_ledger(LedgerQuery("t", "day"))
        assert found.account == Account(*[7] * min(stored, COUNT)).add(ONES)
        assert server.hget(name, field).split()[COUNT:] == [b"7"] * max(stored - COUNT, 0)
    await store.close()
