"""Serve a folder as an OpenAI-compatible model: `python -m tests.bench.notes.serve FOLDER`.

Each call becomes a file with its prompt, and somebody writes the answer beside it. `om-proxy eval`
asks such a model by `--actor played-actor@URL`.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from om_proxy.testing.loopback import serve_on_loopback
from tests.bench.notes.folder import Folder
from tests.bench.notes.play import count_tokens
from tests.bench.notes.server import NotesServer

TIMEOUT_S = 7200.0


async def serve(path: Path) -> None:
    server = NotesServer(Folder(path, timeout_s=TIMEOUT_S).ask, count=count_tokens)
    async with serve_on_loopback(server) as base_url:
        print(f"{path} answers as a model at {base_url}/v1", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m tests.bench.notes.serve", description=__doc__)
    options.add_argument("folder", type=Path)
    asyncio.run(serve(options.parse_args().folder))


if __name__ == "__main__":
    main()
