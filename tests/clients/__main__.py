"""Play the conversations of one page of docs/clients, and tell in a line each what came of it:
`python -m tests.clients NAME FOLDER`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.clients import recipes
from tests.clients.examples import PROGRAMS_OF_CLIENTS, run_example
from tests.clients.look_ups import PLANTED
from tests.clients.playing import CLIENTS, played
from tests.clients.versions import version


def main() -> int:
    """0 if everything held; else 1, and what did not."""
    told = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    told.add_argument("name", choices=[*recipes.names(), *CLIENTS])
    told.add_argument(
        "folder", type=Path, help="where the client is installed: venv/ or node_modules/"
    )
    told.add_argument("--events", default="", help="what it says in X-OM-Events")
    told.add_argument("--look-ups", action="store_true", help="the model looks up earlier messages")
    told.add_argument("--planted", choices=PLANTED, default="", help="a fault in such streams")
    arguments = told.parse_args()
    only = "/chat" if arguments.events or arguments.look_ups else ""
    names = [
        name for name in CLIENTS if f"{name}/".startswith(f"{arguments.name}/") and only in name
    ]
    failed = max([_play(name, arguments) for name in names], default=0)
    if arguments.name in PROGRAMS_OF_CLIENTS and not only:
        failed = max(failed, _run_example(arguments))
    return failed


def _run_example(arguments: argparse.Namespace) -> int:
    program = f"examples/{PROGRAMS_OF_CLIENTS[arguments.name]}"
    with tempfile.TemporaryDirectory(prefix="om-proxy-client-") as folder:
        try:
            client = arguments.folder.resolve()
            asyncio.run(run_example(arguments.name, Path(folder), client))
        except (AssertionError, TimeoutError) as exc:
            traceback.print_exc()
            print(f"{program}: FAILED, {type(exc).__name__}", flush=True)
            return 1
    print(f"{program}: ok", flush=True)
    return 0


def _play(name: str, arguments: argparse.Namespace) -> int:
    title = f"{name} {version(CLIENTS[name].package, arguments.folder)}"
    title += f", {arguments.events}" if arguments.events else ""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="om-proxy-client-") as folder:
        try:
            client = arguments.folder.resolve()
            verdict = asyncio.run(
                played(
                    name,
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
