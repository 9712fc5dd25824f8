"""Hold the readers of histories against the wire: each coding agent talks to a scripted server here, and
every request that the server got must be rebuilt from the file that the agent wrote:
`python -m tests.clients.histories FOLDER` (scripts/clients --histories). No account is needed."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from om_proxy.proof.conversation import Call
from om_proxy.proof.readers.registry import read_history
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import ScriptedServer, message_text
from tests.clients.versions import version

MAX_COMMAND_S = 120.0
PROMPTS = ("Our boat lies at pier 14. Look at the harbour.", "Which pier was it?")
LOOK = "cat harbour.txt"
HARBOUR = "The crane lifts nine tons."
# what `claude` adds to requests; releases without `api-request` lines do not write it down
_REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)


@dataclass(frozen=True)
class Agent:
    """A coding agent: how it is asked, and where its file is."""

    package: str
    command: Sequence[str]  # the prompt follows
    more: Sequence[str]  # before each further prompt
    history: str  # a pattern below its home
    tool_call: tuple[str, Mapping[str, Any]]
    configure: Callable[[Path, str], object] = lambda home, url: None


def flatten(messages: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return role and text of each message that is no instruction; neighbours of a role are one."""
    found: list[tuple[str, str]] = []
    for message in messages:
        role = str(message["role"])
        if role in ("system", "developer"):
            continue
        calls = [
            f"{call['function']['name']}{orjson.dumps(read_json(call['function']['arguments']))!r}"
            for call in message.get("tool_calls") or ()
        ]
        said = _REMINDER.sub("", message_text(message))
        text = " ".join([*said.split(), *calls])
        if found and found[-1][0] == role:
            text = f"{found.pop()[1]} {text}".strip()
        if text:
            found.append((role, text))
    return found


def read_json(text: str) -> Any:
    try:
        return orjson.loads(text)
    except ValueError:
        return text


def write_codex_config(home: Path, url: str) -> None:
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text(
        'model = "gpt-5.4-mini"\nmodel_provider = "here"\n[model_providers.here]\nname = "here"\n'
        f'base_url = "{url}/v1"\nenv_key = "OM_KEY"\nwire_api = "responses"\n'
    )


def write_opencode_config(home: Path, url: str) -> None:
    options = {"baseURL": f"{url}/v1", "apiKey": "sk-a"}
    provider = {
        "npm": "@ai-sdk/openai-compatible", "options": options, "models": {"gpt-5.4-mini": {}},
    }  # fmt: skip
    config = {"model": "here/gpt-5.4-mini", "provider": {"here": provider}}
    (home / "opencode.json").write_bytes(orjson.dumps(config))


AGENTS = {
    "claude-code": Agent(
        "@anthropic-ai/claude-code",
        ("claude", "--allowedTools", "Bash", "-p"),
        ("--continue",),
        ".claude/projects/*/*.jsonl",
        ("Bash", {"command": LOOK, "description": "Look"}),
    ),
    "codex": Agent(
        "@openai/codex",
        ("codex", "exec", "--skip-git-repo-check"),
        ("resume", "--last"),
        ".codex/sessions/**/rollout-*.jsonl",
        ("exec_command", {"cmd": LOOK}),
        write_codex_config,
    ),
    "opencode": Agent(
        "opencode-ai",
        ("opencode", "run"),
        ("-c",),
        ".local/share/opencode/opencode.db",
        ("bash", {"command": LOOK, "description": "Look"}),
        write_opencode_config,
    ),
}


async def try_agent(name: str, installed: Path, home: Path) -> str:
    """Return how many requests were rebuilt. Raise AssertionError where one was not."""
    agent = AGENTS[name]
    (home / "harbour.txt").write_text(f"{HARBOUR}\n")
    tool, arguments = agent.tool_call
    function = {"name": tool, "arguments": orjson.dumps(arguments).decode()}
    look = {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
    }
    server = LookingServer(look)
    async with serve_on_loopback(server, lifespan="off") as url:
        agent.configure(home, url)
        for number, prompt in enumerate(PROMPTS):
            await run(
                [*agent.command, *(agent.more if number else ()), prompt], installed, home, url
            )
    return judge_requests(server, [*read_calls(name, home)])


def read_calls(name: str, home: Path) -> Iterator[Call]:
    """Yield the calls of all files that the agent wrote."""
    for path in home.glob(AGENTS[name].history):
        for conversation in read_history(path, name):
            yield from conversation.calls


def judge_requests(server: ScriptedServer, calls: Sequence[Call]) -> str:
    rebuilt = [flatten(call.sent) for call in calls]
    # titles are asked for without tools
    asked = [flatten(r.messages) for r in server.requests if orjson.loads(r.body).get("tools")]
    missing = [request for request in asked if request not in rebuilt]
    assert len(asked) > len(PROMPTS), f"only {len(asked)} requests came: no tool was called"
    assert not missing, f"{len(missing)} of {len(asked)}: {missing[0]} is none of {rebuilt}"
    return f"{len(asked)} of {len(asked)} requests rebuilt"


class LookingServer(ScriptedServer):
    """Calls the tool once, at the first request that offers tools."""

    def __init__(self, look: Mapping[str, Any]) -> None:
        super().__init__()
        self._look: Mapping[str, Any] | None = look

    def _choose_with_look_ups(self, request: Any, model: str, messages: Any, fault: Any) -> Any:
        if request.get("tools") and self._look is not None:
            look, self._look = self._look, None
            return look
        return super()._choose_with_look_ups(request, model, messages, fault)


async def run(command: Sequence[str], installed: Path, home: Path, url: str) -> None:
    kept = {
        n: v for n, v in os.environ.items() if not n.startswith(("ANTHROPIC_", "OPENAI_", "XDG_"))
    }
    path = os.pathsep.join([str(installed / "node_modules" / ".bin"), os.environ["PATH"]])
    own = {
        "PATH": path, "HOME": str(home), "OM_KEY": "sk-a", "NO_PROXY": "127.0.0.1",
        "ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "sk-a",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "ENABLE_TOOL_SEARCH": "false",
        "OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1",
    }  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        *command, cwd=home, env={**kept, **own}, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        async with asyncio.timeout(MAX_COMMAND_S):
            out, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        raise
    assert process.returncode == 0, f"{command[0]} ended with {process.returncode}: {out[-600:]!r}"


def main() -> int:
    """0 if every request was rebuilt."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients.histories", description=__doc__)
    parser.add_argument("folder", type=Path, help="whose node_modules has the agents")
    parser.add_argument("names", nargs="*", default=list(AGENTS))
    options = parser.parse_args()
    installed, failed = options.folder.resolve(), 0
    for name in options.names:
        title = f"{name} {version(AGENTS[name].package, installed)}"
        with tempfile.TemporaryDirectory(prefix="om-proxy-histories-") as home:
            try:
                verdict = asyncio.run(try_agent(name, installed, Path(home)))
            except (AssertionError, TimeoutError, ValueError) as exc:
                failed, verdict = 1, f"FAILED, {type(exc).__name__} {exc}"
            print(f"{title}: {verdict}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
