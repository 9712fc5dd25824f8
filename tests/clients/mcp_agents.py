"""Have agents read memory by MCP, configured by the very blocks of docs/guides/mcp.md:
`python -m tests.clients.mcp_agents FOLDER` (scripts/mcp-clients). No account is needed: the model of
one agent is played here, another is asked through its own server."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from om_proxy.management.mcp.tools import TOOL_NAMES
from om_proxy.testing import loopback
from om_proxy.testing.loopback import Receive, Scope, Send, serve_on_loopback
from tests.clients.recipes import ADDRESS
from tests.clients.versions import version
from tests.e2e.running import run_with_scripted_models

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "mcp.md"
MAX_COMMAND_S = 120.0
CANARY_REMARK = "My violin lies in crate 7 at the harbour"
# of each tool: its arguments, and what its answer holds
CALLS: Mapping[str, tuple[dict[str, str], str]] = {
    "list_threads": ({}, "conversations 1 to 1"),
    "search_memory": ({"query": "violin"}, CANARY_REMARK),
    "read_messages": ({"thread": "trip"}, CANARY_REMARK),
    "get_notes": ({"thread": "trip"}, "there are no notes yet"),
}
Run = Callable[..., Awaitable[str]]


def read_block(heading: str) -> str:
    """Return the first block below a heading of the guide that begins so."""
    section = GUIDE.read_text(encoding="utf-8").partition(f"\n### {heading}")[2]
    found = re.search(r"```\w+\n(.*?)```", section, re.DOTALL)
    assert found, f"the guide has no block for {heading}"
    return found[1]


def judge_answers(answers: Mapping[str, str]) -> str:
    """Raise AssertionError for an answer that does not hold what is stored. Return the verdict."""
    assert set(answers) == set(CALLS) == set(TOOL_NAMES), f"called: {sorted(answers)}"
    for tool, (_, held) in CALLS.items():
        assert held in answers[tool], f"{tool} answered {answers[tool]!r}"
    return f"{len(answers)} tools listed and called"


class PlayedModel:
    """A model of Anthropic's Messages API that calls each tool of the server `memory` in turn."""

    def __init__(self) -> None:
        self.answers: dict[str, str] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = await loopback.read_body(receive)
        if scope["method"] != "POST" or not scope["path"].endswith("/messages"):
            await loopback.send_json(send, 200, {"input_tokens": 1})
            return
        request = json.loads(body)
        offered = {tool["name"] for tool in request.get("tools", ())}
        blocks = [
            b for m in request["messages"] if isinstance(m["content"], list) for b in m["content"]
        ]
        results = [block for block in blocks if block["type"] == "tool_result"]
        for tool, result in zip(CALLS, results, strict=False):
            self.answers[tool] = json.dumps(result["content"], ensure_ascii=False)
        tool = next((t for t in CALLS if t not in self.answers), None)
        name = f"mcp__memory__{tool}"
        block: dict[str, Any] = {"type": "text", "text": "Done."}
        if tool is not None and name in offered:
            arguments = CALLS[tool][0]
            block = {"type": "tool_use", "id": f"toolu_{tool}", "name": name, "input": arguments}
        reply = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": request["model"],
            "content": [block],
            "stop_reason": "tool_use" if "input" in block else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
        data = write_stream(reply) if request.get("stream") else json.dumps(reply).encode()
        kind = b"text/event-stream" if request.get("stream") else b"application/json"
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]}
        )
        await send({"type": "http.response.body", "body": data})


def write_stream(reply: Mapping[str, Any]) -> bytes:
    """Write a message of one block as the events of a stream."""
    [block] = reply["content"]
    if "input" in block:
        delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        begun = {**block, "input": {}}
    else:
        delta, begun = {"type": "text_delta", "text": block["text"]}, {**block, "text": ""}
    end = {"stop_reason": reply["stop_reason"], "stop_sequence": None}
    events: list[tuple[str, dict[str, Any]]] = [
        ("message_start", {"message": {**reply, "content": [], "stop_reason": None}}),
        ("content_block_start", {"index": 0, "content_block": begun}),
        ("content_block_delta", {"index": 0, "delta": delta}),
        ("content_block_stop", {"index": 0}),
        ("message_delta", {"delta": end, "usage": {"output_tokens": 1}}),
        ("message_stop", {}),
    ]
    return b"".join(
        f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n".encode()
        for name, data in events
    )


async def try_claude(base: str, home: Path, run: Run) -> str:
    block = read_block("claude").replace(ADDRESS, base)
    await run("bash", "-c", block)
    listed = await run("claude", "mcp", "list")
    assert "Connected" in listed, listed
    model = PlayedModel()
    async with serve_on_loopback(model, lifespan="off") as url:
        env = {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "sk-played",
            "ENABLE_TOOL_SEARCH": "false",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        await run("claude", "-p", "Look into memory", "--allowedTools", "mcp__memory", env=env)
    return judge_answers(model.answers)


async def try_codex(base: str, home: Path, run: Run) -> str:
    (home / ".codex").mkdir()
    block = read_block("Codex").replace(ADDRESS, base)
    (home / ".codex" / "config.toml").write_text(block, encoding="utf-8")
    async with asyncio.timeout(MAX_COMMAND_S):
        return await _ask_codex(run)


async def _ask_codex(run: Run) -> str:
    process = await run("codex", "app-server", is_server=True)
    assert isinstance(process, asyncio.subprocess.Process)
    assert process.stdin is not None
    assert process.stdout is not None
    number = 0

    async def ask(method: str, params: Mapping[str, Any]) -> Any:
        nonlocal number
        number += 1
        message = {"id": number, "method": method, "params": params}
        process.stdin.write(json.dumps(message).encode() + b"\n")
        while line := await process.stdout.readline():
            answer = json.loads(line)
            if answer.get("id") == number and "method" not in answer:
                assert "result" in answer, f"{method}: {answer}"
                return answer["result"]
        raise AssertionError(f"codex ended at {method}")

    try:
        await ask("initialize", {"clientInfo": {"name": "t", "title": None, "version": "0"}})
        process.stdin.write(b'{"method":"initialized"}\n')
        [server] = (await ask("mcpServerStatus/list", {}))["data"]
        assert set(server["tools"]) == set(TOOL_NAMES), server
        thread = (await ask("thread/start", {}))["thread"]["id"]
        answers = {}
        for tool, (arguments, _) in CALLS.items():
            called = {"threadId": thread, "server": "memory", "tool": tool, "arguments": arguments}
            result = await ask("mcpServer/tool/call", called)
            assert not result["isError"], result
            answers[tool] = result["content"][0]["text"]
        return judge_answers(answers)
    finally:
        process.terminate()
        await process.wait()


async def try_opencode(base: str, home: Path, run: Run) -> str:
    (home / "opencode.json").write_text(read_block("opencode").replace(ADDRESS, base), "utf-8")
    env = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
    listed = await run("opencode", "mcp", "list", env=env)
    assert "connected" in listed, listed
    return "connected"


AGENTS: Mapping[str, tuple[str, Callable[[str, Path, Run], Awaitable[str]]]] = {
    "claude": ("@anthropic-ai/claude-code", try_claude),
    "codex": ("@openai/codex", try_codex),
    "opencode": ("opencode-ai", try_opencode),
}


async def try_agent(name: str, installed: Path, folder: Path) -> str:
    """Return what an agent came to against a live proxy. Raise AssertionError or TimeoutError."""
    home = folder / "home"
    home.mkdir()
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("ANTHROPIC_", "OPENAI_"))}
    path = os.pathsep.join([str(installed / "node_modules" / ".bin"), os.environ["PATH"]])
    base_env = {**kept, "PATH": path, "HOME": str(home), "OM_KEY": "sk-a", "NO_PROXY": "127.0.0.1"}

    async def run(*command: str, env: Mapping[str, str] = {}, is_server: bool = False) -> Any:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=home,
            env={**base_env, **env},
            stdin=asyncio.subprocess.PIPE if is_server else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL if is_server else asyncio.subprocess.STDOUT,
            limit=1 << 24,
        )
        if is_server:
            return process
        async with asyncio.timeout(MAX_COMMAND_S):
            out, _ = await process.communicate()
        assert process.returncode == 0, f"{command[0]} ended with {process.returncode}: {out!r}"
        return out.decode()

    async with run_with_scripted_models(folder) as running:
        await running.chat("trip", key="sk-a", **{"x-om-resource": "alice"}).say(CANARY_REMARK)
        return await AGENTS[name][1](running.base, home, run)


def main() -> int:
    """0 if everything held."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients.mcp_agents", description=__doc__)
    parser.add_argument("folder", type=Path, help="whose node_modules has the agents")
    installed = parser.parse_args().folder.resolve()
    failed = 0
    for name, (package, _) in AGENTS.items():
        title = f"{name} {version(package, installed)}"
        with tempfile.TemporaryDirectory(prefix="om-proxy-mcp-") as folder:
            try:
                print(
                    f"{title}: {asyncio.run(try_agent(name, installed, Path(folder)))}", flush=True
                )
            except (AssertionError, TimeoutError) as exc:
                failed = 1
                print(f"{title}: FAILED, {type(exc).__name__} {exc}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
