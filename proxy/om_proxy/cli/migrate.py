"""`om-proxy store migrate`: bring the schema of the store up to date, and do nothing else."""

from __future__ import annotations

import argparse

from om_proxy.cli.exit_status import DONE
from om_proxy.cli.store_command import run_with_any_store
from om_proxy.storage.base import Store


def run(options: argparse.Namespace) -> int:
    """Open the store, which makes it or brings it up to date."""
    return run_with_any_store(options.config, report_schema)


async def report_schema(store: Store) -> int:
    promise = await store.describe()
    print(f"{promise.kind}: schema {promise.schema_version} is up to date")
    return DONE
