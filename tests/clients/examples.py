"""Run the program of examples/ that uses a client, as somebody would who has the client installed."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

from tests.clients.playing import make_environment
from tests.e2e.playing import collect_turn_events
from tests.e2e.running import run_with_scripted_models

EXAMPLES = Path(__file__).parents[2] / "examples"
# by the page of docs/clients, whose command installs what it imports
PROGRAMS_OF_CLIENTS = {
    "langchain": "langchain_chat.py",
    "openai-agents": "openai_agents.py",
    "pydantic-ai": "pydantic_ai_agent.py",
    "vercel-ai-sdk": "ai_sdk.mjs",
}
PROGRAM_MAY_TAKE_S = 240.0
TURNS = 3


async def run_example(name: str, folder: Path, installed: Path) -> None:
    """Raise AssertionError unless each turn is answered and stored under the example's names."""
    file = EXAMPLES / PROGRAMS_OF_CLIENTS[name]
    program = folder / file.name
    shutil.copy(file, program)
    if (installed / "node_modules").is_dir():
        (folder / "node_modules").symlink_to(installed / "node_modules")
    (thread,) = re.findall(r'"X-OM-Thread": "(.+?)"', file.read_text(encoding="utf-8"))
    with collect_turn_events():  # which the log would print
        await _run_before_proxy(program, thread, folder, make_environment(folder, installed))


async def _run_before_proxy(program: Path, thread: str, folder: Path, env: dict[str, str]) -> None:
    async with run_with_scripted_models(folder) as proxy:
        command = shutil.which("node" if program.suffix == ".mjs" else "python", path=env["PATH"])
        assert command
        process = await asyncio.create_subprocess_exec(
            command,
            program,
            cwd=folder,
            env=env | {"OPENAI_BASE_URL": f"{proxy.base}/v1"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(PROGRAM_MAY_TAKE_S):
            out, err = await process.communicate()
        assert process.returncode == 0, err.decode()[-3000:]
        said = re.findall(r"^you: (.+)\nmodel: (.+)$", out.decode(), flags=re.M)
        assert len(said) == TURNS, out.decode()
        memory = await proxy.memory()
        assert (memory.key.resource, memory.key.thread) == ("user-42", thread)
        assert (memory.count, len(proxy.models.requests)) == (2 * TURNS, TURNS)
