"""Run one client's conversation: its recipe and its program in a folder, a proxy and a scripted model server on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from proxy.demo.scripted import Scripted
from tests.clients import recipes
from tests.clients.conversation import conversation, script
from tests.clients.judging import Verdict, judged
from tests.e2e.playing import Stories, stories
from tests.e2e.running import running

PROGRAMS = Path(__file__).parent / "programs"
SMALL = "observation: {message_tokens: 1200, buffer_tokens: 300, block_timeout: 10s}"


@dataclass(frozen=True)
class Client:
    """How a client is run. `program`: a file of programs/; `more`: what its recipe asks of the proxy's configuration."""

    program: str
    package: str  # whose version is told
    tools: bool = True
    turns: int = 14
    more: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    ready: str = ""  # of a recipe that serves: the path that answers 200 once it does
    behind: bool = False  # whether what is served stands between the proxy and the model server
    within: float = 120.0  # seconds the conversation may take


CLIENTS: Mapping[str, Client] = {
    "openai-python": Client("openai_python.py", "openai"),
    "openai-node": Client("openai_node.mjs", "openai"),
    "langchain": Client("langchain.py", "langchain-openai"),
    "litellm": Client("litellm.py", "litellm"),
    "pydantic-ai": Client("pydantic_ai.py", "pydantic-ai-slim"),
    "openai-agents": Client("openai_agents.py", "openai-agents"),
    "vercel-ai-sdk": Client("vercel_ai_sdk.mjs", "ai"),
    "llm": Client("llm.py", "llm", env={"LLM_USER_PATH": "."}),
}


async def played(name: str, folder: Path, installed: Path) -> Verdict:
    """The conversation, in `folder`, of the client that `installed` holds; raises AssertionError for what does not hold.

    `installed` is a virtual environment, or has one in `venv/`, or packages of npm in `node_modules/`.
    """
    client, recipe = CLIENTS[name], recipes.recipe(name)
    turns = conversation(tools=client.tools, count=client.turns)
    with stories() as told:
        async with running(folder, SMALL, models=Scripted(script(turns)), more=client.more) as run:
            recipe.write(folder, run.base)
            (folder / "turns.json").write_bytes(orjson.dumps([{"say": t.say, "stream": t.stream} for t in turns]))
            for file in (client.program, "talk.py", "talk.mjs"):
                shutil.copy(PROGRAMS / file, folder)
            if (installed / "node_modules").is_dir():  # JavaScript's imports look nowhere but beside the program
                (folder / "node_modules").symlink_to(installed / "node_modules")
            answers = await _answers(client, folder, _path(installed))
            await run.app.background.wait_idle()
            names = {"thread": recipe.header("X-OM-Thread"), "resource": recipe.header("X-OM-Resource")}
            return await judged(run, _all(told), turns, answers, **names)


def _all(told: Stories) -> list[dict[str, object]]:
    return [dict(told.told.get_nowait()) for _ in range(told.told.qsize())]


async def _answers(client: Client, folder: Path, path: str) -> list[str]:
    """What the client's program tells to have been answered."""
    run = "node" if client.program.endswith(".mjs") else "python"
    process = await asyncio.create_subprocess_exec(
        shutil.which(run, path=path) or run,
        client.program,
        cwd=folder,
        env=_environment(folder, path) | client.env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(client.within):
        out, err = await process.communicate()
    assert process.returncode == 0, f"{client.program} ended with {process.returncode}:\n{err.decode()[-3000:]}"
    return [json.loads(line)["answer"] for line in out.decode().splitlines() if line.startswith('{"answer"')]


def _environment(folder: Path, path: str) -> dict[str, str]:
    """A home of its own, a key, and none of the caller's own settings for clients."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "LITELLM_", "PYTHON"))}
    return kept | {
        "PATH": path,
        "HOME": str(folder),
        "OPENAI_API_KEY": "sk-client",
        "NO_PROXY": "127.0.0.1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it is fetched
    }


def _path(installed: Path) -> str:
    places = (installed / "bin", installed / "venv" / "bin", installed / "node_modules" / ".bin")
    return os.pathsep.join([*map(str, places), os.environ.get("PATH", os.defpath)])
