"""Run one client's conversation: its recipe and its program in a folder, a proxy and a scripted
model server on loopback.

The name of a client says its page of docs/clients, and where it has several ways to ask, the API
and how it uses it: `openai-python/responses/store-false`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import orjson
from structlog.typing import EventDict

from om_proxy.common.apis import API_NAMES, ApiName
from om_proxy.testing.scripted import OBSERVER, ScriptedServer
from tests.clients import recipes
from tests.clients.comments import LongNotes, judge_comments, listen_between
from tests.clients.conversation import conversation, script
from tests.clients.judging import KEY, Verdict, judge_passed_on, judged
from tests.clients.look_ups import LOOK_UPS, CuriousServer, Planted, judge_streams, plant
from tests.e2e.playing import TurnEvents, collect_turn_events
from tests.e2e.running import run_with_scripted_models
from tests.support.free_port import free_port

PROGRAMS = Path(__file__).parent / "programs"
SMALL = "observation: {message_tokens: 1200, buffer_tokens: 300, block_timeout: 10s}"
# the request itself waits for the notes, so a stream has comments about all of it
WAITING = "observation: {message_tokens: 1200, buffer_tokens: false, block_timeout: 60s}"
PASSED_ON_TURNS = 3  # of the conversation, said once more without a thread; the third has a call
PROVIDER = "https://api.openai.com"  # where a recipe says so, the scripted server stands in


@dataclass(frozen=True)
class Client:
    """How a client is run, as far as its recipe does not say it."""

    program: str  # a file of programs/
    package: str  # whose version is told
    tool: str | None = "price"  # what the model calls
    aside: int = 0  # side requests it makes meanwhile
    serves: tuple[int, str] | None = (
        # what serve.sh serves: its port as the recipe says it, a path that answers 200 when it is
        # up
        None
    )
    behind: bool = False  # whether that stands between the proxy and the model server
    fits_types: bool = True  # whether what it sends fits the types that the vendor published
    env: Mapping[str, str] = field(default_factory=dict)
    within: float = 240.0  # seconds that starting, and then the conversation, may take


# what the requests of such a client say beside the conversation
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "": {},
    "store-false": {"store": False},
    # no options of the API, but of the program:
    "previous": {"previous": True},  # it sends what is new
    "codex": {"codex": True},  # it asks for a model that chooses the API
}

CLIENTS: Mapping[str, Client] = {
    "openai-python/chat": Client("openai_python.py", "openai"),
    "openai-python/responses": Client("openai_responses.py", "openai"),
    "openai-python/responses/store-false": Client("openai_responses.py", "openai"),
    "openai-python/responses/previous": Client("openai_responses.py", "openai"),
    "openai-node/chat": Client("openai_node.mjs", "openai"),
    "openai-node/responses": Client("openai_responses.mjs", "openai"),
    "openai-node/responses/store-false": Client("openai_responses.mjs", "openai"),
    "openai-node/responses/previous": Client("openai_responses.mjs", "openai"),
    "anthropic-python/messages": Client("anthropic_python.py", "anthropic"),
    "anthropic-node/messages": Client("anthropic_node.mjs", "@anthropic-ai/sdk"),
    "langchain/chat": Client("langchain.py", "langchain-openai"),
    # it sends tools without `strict`, and a streamed message without its id
    "langchain/responses": Client("langchain.py", "langchain-openai", fits_types=False),
    "langchain/responses/store-false": Client("langchain.py", "langchain-openai", fits_types=False),
    "langchain/responses/codex": Client("langchain.py", "langchain-openai", fits_types=False),
    "langchain/messages": Client("langchain.py", "langchain-anthropic"),
    "litellm/chat": Client("litellm.py", "litellm"),
    "litellm/responses": Client("litellm_responses.py", "litellm"),
    "litellm/responses/store-false": Client("litellm_responses.py", "litellm"),
    "litellm/messages": Client("litellm_messages.py", "litellm"),
    "pydantic-ai/chat": Client("pydantic_ai.py", "pydantic-ai-slim"),
    "pydantic-ai/responses": Client("pydantic_ai.py", "pydantic-ai-slim"),
    "pydantic-ai/responses/store-false": Client("pydantic_ai.py", "pydantic-ai-slim"),
    "pydantic-ai/messages": Client("pydantic_ai.py", "pydantic-ai-slim"),
    "openai-agents/chat": Client("openai_agents.py", "openai-agents"),
    "openai-agents/responses": Client("openai_agents.py", "openai-agents"),
    "openai-agents/responses/store-false": Client("openai_agents.py", "openai-agents"),
    "openai-agents/responses/previous": Client("openai_agents.py", "openai-agents"),
    "vercel-ai-sdk/chat": Client("vercel_ai_sdk.mjs", "ai"),
    "vercel-ai-sdk/responses": Client("vercel_ai_sdk.mjs", "ai"),
    "vercel-ai-sdk/responses/store-false": Client("vercel_ai_sdk.mjs", "ai"),
    "vercel-ai-sdk/messages": Client("vercel_ai_sdk.mjs", "ai"),
    "llm/chat": Client("llm.py", "llm", env={"LLM_USER_PATH": "."}, within=1_200),
    "opencode/chat": Client(
        "opencode.py",
        "opencode-ai",
        tool="bash",
        aside=1,
        env={
            "OPENCODE_DISABLE_MODELS_FETCH": "1",  # else each turn asks for a list of models
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
        },
        within=1_200,
    ),
    "litellm-proxy-before/chat": Client(
        "openai_python.py", "litellm", serves=(4000, "/health/liveliness")
    ),
    "litellm-proxy-behind/chat": Client(
        "openai_python.py", "litellm", serves=(4000, "/health/liveliness"), behind=True
    ),
    "open-webui/chat": Client(
        "open_webui.py",
        "open-webui",
        tool=None,
        aside=16,  # a title, tags, and follow-ups of every turn
        serves=(8080, "/health"),
        env={
            "WEBUI_AUTH": "False",
            "WEBUI_SECRET_KEY": KEY,
            "DATA_DIR": ".",
            "OFFLINE_MODE": "true",
            "HF_HUB_OFFLINE": "1",
            "RAG_EMBEDDING_ENGINE": "openai",  # else it loads a model of its own
            "AUDIO_STT_ENGINE": "openai",
            "ENABLE_OLLAMA_API": "false",
            "ENABLE_VERSION_UPDATE_CHECK": "false",
        },
    ),
}


def split_name(name: str) -> tuple[str, ApiName, str]:
    """Return a client's page, its API and the key of its options."""
    page, api, *option = name.split("/")
    assert api in API_NAMES
    return page, api, "".join(option)


async def played(
    name: str,
    folder: Path,
    installed: Path,
    *,
    events: str = "",
    look_ups: bool = False,
    planted: Planted = "",
    **changes: Any,
) -> Verdict:
    """The conversation, in `folder`, of the client that `installed` holds; raises AssertionError
    for what does not hold.

    `installed` is a virtual environment, or has one in `venv/`, or packages of npm in
    `node_modules/`. `events`: what it says in `X-OM-Events`; empty: it has no such header.
    `look_ups`: the model looks up earlier messages; `planted`: a fault in the streams of such
    replies. `changes`: of the fields of its Client.
    """
    page, api, option = split_name(name)
    client, recipe = replace(CLIENTS[name], **changes), recipes.recipe(page, api)
    turns = conversation(client.tool)
    served = f"127.0.0.1:{free_port()}"
    places = recipe.ask_for_events(events) if events else {}
    assert bool(places) == bool(events), "the recipe has a place for a header"

    def find_upstream_url(models: str) -> str:
        places[PROVIDER] = models
        return f"http://{served}" if client.behind else models

    models = LongNotes(script(turns)) if events else ScriptedServer(script(turns))
    if look_ups:
        models = CuriousServer(script(turns))
    memory = (LOOK_UPS if look_ups else "") + (WAITING if events else SMALL)
    with collect_turn_events() as turn_events, plant(planted):
        more = recipe.files.get("om-proxy.yaml", "").replace("\n", "\n" + " " * 12)
        async with (
            run_with_scripted_models(
                folder,
                memory,
                models=models,
                more=more,
                model_timeout_s=60.0,
                upstream_url=find_upstream_url,
            ) as run,
            listen_between(run.base) as wire,
        ):
            places[recipes.ADDRESS] = wire.url
            if client.serves:
                port = client.serves[0]
                places |= {
                    f"127.0.0.1:{port}": served,
                    f"--port {port}": f"--port {served.partition(':')[2]}",
                }
            recipe.write(folder, places)
            said = [{"say": turn.say, "stream": turn.stream or bool(events)} for turn in turns]
            told = {"tool": client.tool, "options": OPTIONS[option], "turns": said}
            (folder / "turns.json").write_bytes(orjson.dumps(told))
            for file in ("talk.py", "talk.mjs"):
                shutil.copy(PROGRAMS / file, folder)
            if (
                installed / "node_modules"
            ).is_dir():  # JavaScript's imports look nowhere but beside the program
                (folder / "node_modules").symlink_to(installed / "node_modules")
            env = (
                make_environment(folder, installed)
                | dict(client.env)
                | {"SERVED": f"http://{served}"}
            )
            async with _serving(client, folder, env, served):
                lines = await _lines(client, folder, env)
            written = {
                "thread": recipe.header("X-OM-Thread"),
                "resource": recipe.header("X-OM-Resource"),
            }
            names: dict[str, Any] = next((line for line in lines if "thread" in line), written)
            answers = [line["answer"] for line in lines if "answer" in line]
            verdict = await judged(
                run,
                _all(turn_events),
                turns,
                answers,
                names["thread"],
                names["resource"],
                api,
                fits_types=client.fits_types,
            )
            if written["thread"] and not client.serves:
                since = len(models.requests)
                recipe.write(folder, places | {"X-OM-Thread": "X-No-Thread"})
                told["turns"] = said[:PASSED_ON_TURNS]
                (folder / "turns.json").write_bytes(orjson.dumps(told))
                await _lines(client, folder, env)
                judge_passed_on(run, _all(turn_events), wire.requests, since)
    assert verdict.aside == client.aside
    assert verdict.activations >= (1 if events else 2)  # of long notes one comes to few turns
    if look_ups:
        seen = [request for request in models.requests if request.model != OBSERVER]
        verdict = replace(verdict, comments=judge_streams(wire.replies, seen))
    if events:
        verdict = replace(verdict, comments=judge_comments(wire.replies, verdict.streamed, events))
    return verdict


def _all(turn_events: TurnEvents) -> list[EventDict]:
    return [dict(turn_events.queue.get_nowait()) for _ in range(turn_events.queue.qsize())]


async def _lines(client: Client, folder: Path, env: Mapping[str, str]) -> list[dict[str, Any]]:
    """What the client's program tells: each answer, and how it calls the conversation where it
    chooses."""
    # not under its own name: a program named as its client would be imported in its place
    program = folder / f"program{Path(client.program).suffix}"
    shutil.copy(PROGRAMS / client.program, program)
    run = shutil.which("node" if program.suffix == ".mjs" else "python", path=env["PATH"])
    assert run
    process = await asyncio.create_subprocess_exec(
        run,
        program,
        cwd=folder,
        env=env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(client.within):
        out, err = await process.communicate()
    assert process.returncode == 0, (
        f"{client.program} ended with {process.returncode}:\n{err.decode()[-3000:]}"
    )
    return [json.loads(line) for line in out.decode().splitlines() if line.startswith('{"')]


@contextlib.asynccontextmanager
async def _serving(
    client: Client, folder: Path, env: Mapping[str, str], served: str
) -> AsyncIterator[None]:
    """While the block lasts, what the recipe's serve.sh serves; all it started has ended
    afterwards."""
    if client.serves is None:
        yield
        return
    with (folder / "serve.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            "bash", "serve.sh", cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True
        )
        try:
            async with asyncio.timeout(client.within), httpx.AsyncClient(trust_env=False) as http:
                while not await _up(http, f"http://{served}{client.serves[1]}"):
                    assert process.returncode is None, (folder / "serve.log").read_text(
                        errors="replace"
                    )[-3000:]
                    await asyncio.sleep(0.2)  # not listening yet; bounded by the time-out above
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                os.killpg(process.pid, signal.SIGTERM)
            await process.wait()


async def _up(http: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await http.get(url)).status_code == 200
    except httpx.TransportError:
        return False


def make_environment(folder: Path, installed: Path) -> dict[str, str]:
    """A home of its own, a key, and none of the caller's own settings for clients."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OPENAI_", "ANTHROPIC_", "LITELLM_", "PYTHON"))
    }
    places = (installed / "bin", installed / "venv" / "bin", installed / "node_modules" / ".bin")
    return kept | {
        "PATH": os.pathsep.join([*map(str, places), os.environ.get("PATH", os.defpath)]),
        "HOME": str(folder),
        "OPENAI_API_KEY": KEY,
        "ANTHROPIC_API_KEY": KEY,
        "NO_PROXY": "127.0.0.1",
        "LITELLM_MASTER_KEY": KEY,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it is fetched
    }
