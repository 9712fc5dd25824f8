"""`om-proxy rekey`: change the master key of an encrypted database."""

from __future__ import annotations

import argparse

from om_proxy.cli.conversion import run_conversion
from om_proxy.cli.exit_status import DONE
from om_proxy.cli.progress import show_progress
from om_proxy.storage.encryption.conversion import ConvertibleStore, rewrap_keys


def run(options: argparse.Namespace) -> int:
    """Wrap every data key under the first master key of the settings."""
    return run_conversion(options.config, rekey)


async def rekey(store: ConvertibleStore) -> int:
    with show_progress("wrapping keys"):
        count = await rewrap_keys(store)
    print(
        f"wrapped anew: {count} data keys; "
        "the older master keys open nothing here any more: take them out of storage.encryption_key"
    )
    return DONE
