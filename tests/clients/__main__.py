"""Play one client's conversation and tell in a line what came of it: `python -m tests.clients NAME
FOLDER`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.clients.look_ups import PLANTED
from tests.clients.playing import CLIENTS, played
from tests.clients.versions import version


def main() -> int:
    """0 if everything held; else 1, and what did not."""
    told = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    told.add_argument("name", choices=CLIENTS)
    told.add_argument(
        "folder", type=Path, help="where the client is installed: venv/ or node_modules/"
    )
    told.add_argument("--events", default="", help="what it says in X-OM-Events")
    told.add_argument("--look-ups", action="store_true", help="the model looks up earlier messages")
    told.add_argument("--planted", choices=PLANTED, default="", help="a fault in such streams")
    arguments = told.parse_args()
    title = f"{arguments.name} {version(CLIENTS[arguments.name].package, arguments.folder)}"
    title += f", {arguments.events}" if arguments.events else ""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="om-proxy-client-") as folder:
        try:
            client = arguments.folder.resolve()
            verdict = asyncio.run(
                played(
                    arguments.name,
                    Path(folder),
                    client,
                    events=arguments.events,
                    look_ups=arguments.look_ups,
                    planted=arguments.planted,
                )
            )
        except (AssertionError, IndexError, TimeoutError) as exc:
            traceback.print_exc()
            print(
                f"{title}: FAILED, {str(exc).splitlines()[0] if str(exc) else type(exc).__name__}",
                flush=True,
            )
            return 1
    print(f"{title}: {verdict}, ok ({time.monotonic() - started:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
