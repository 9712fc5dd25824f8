"""Nothing of what was forgotten is left in a server's tables, nor in its statistics about them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import asyncpg
import pytest

from tests.storage.canary_threads import Cells, read_postgres
from tests.storage.erasure_contract import ErasureContract, ReadCells


class TestPostgresErasure(ErasureContract):
    @pytest.fixture
    def read_cells(self, url: str, schema: str) -> ReadCells:
        async def read() -> Cells:
            return await read_postgres(url, schema)

        return read

    @pytest.fixture
    def raise_ids(self, url: str, schema: str) -> Callable[[int], Awaitable[None]]:
        async def raised(first: int) -> None:
            connection = await asyncpg.connect(url)
            await connection.execute(f'ALTER SEQUENCE "{schema}".version RESTART {first}')
            await connection.close()

        return raised
