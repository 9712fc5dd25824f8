"""The examples, run as somebody would run them: against a live proxy, with a scripted model server
behind it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from om_proxy.cli.demo.stage import serve_trial
from om_proxy.settings.config import parse
from om_proxy.testing.scripted import ScriptedServer
from tests.clients.examples import PROGRAMS_OF_CLIENTS
from tests.e2e.playing import collect_turn_events
from tests.e2e.running import run_with_scripted_models

EXAMPLES = Path(__file__).parents[1] / "examples"
DOCKERFILE = EXAMPLES.parent / "Dockerfile"
README = EXAMPLES.parent / "README.md"
QUICKSTART = EXAMPLES.parent / "docs" / "quickstart" / "python.md"


async def run(proxy: str, *command: str | Path) -> str:
    """What the program prints; it must end within a minute."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        env=os.environ
        | {
            "OPENAI_BASE_URL": f"{proxy}/v1",
            "OPENAI_API_KEY": "sk-example",
            "ANTHROPIC_API_KEY": "sk-example",
            "NO_PROXY": "127.0.0.1",
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


def test_every_example_is_run() -> None:
    """A new example needs a test of its own here. Those of clients are run by scripts/clients,
    which installs them."""
    names = {file.name for file in EXAMPLES.iterdir() if file.is_file()}
    assert names - set(PROGRAMS_OF_CLIENTS.values()) == {
        "openai_sdk.py", "openai_sdk_stream.py", "conversation.ipynb", "curl.sh", "compose.yaml",
        "compose-open-webui.yaml",
    }  # fmt: skip
    for name in PROGRAMS_OF_CLIENTS.values():
        assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) <= 40


def read_cells() -> str:
    """The code of the notebook, which keeps no output of a run."""
    notebook = json.loads((EXAMPLES / "conversation.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["outputs"] for cell in cells] == [[]] * len(cells)
    return "\n".join("".join(cell["source"]) for cell in cells)


async def test_the_notebook(tmp_path: Path) -> None:
    """With the threshold that it names, its first turn is sent as it is, notes stand for old turns
    at its end, and the model still knows the first room."""
    text = (EXAMPLES / "conversation.ipynb").read_text(encoding="utf-8")
    (threshold,) = re.findall(r"MESSAGE_TOKENS=(\d+) om-proxy serve", text)
    memory_settings = f"observation: {{message_tokens: {threshold}}}"
    async with run_with_scripted_models(tmp_path, memory_settings) as proxy:
        out = await run(proxy.base, sys.executable, "-c", read_cells())
        statuses = re.findall(r"memory (\w+), \d+ tokens sent", out)
        assert (len(statuses), statuses[0], statuses[-1]) == (9, "raw", "applied")
        assert "7 paintings" in out.splitlines()[-2]
        assert (await proxy.memory()).key.thread == "museum-guide"


async def test_openai_sdk(tmp_path: Path) -> None:
    """Three turns, answered, stored under the names the example gives, and each told with its
    receipt."""
    async with run_with_scripted_models(tmp_path) as proxy:
        out = await run(proxy.base, sys.executable, EXAMPLES / "openai_sdk.py")
        assert re.findall(r"^you: (.+)$", out, flags=re.M) == [
            "The worktop is 312 cm long.",
            "The sink is 60 cm wide.",
            "How much worktop is left beside the sink?",
        ]
        assert "model: Noted: The worktop is 312 cm long." in out
        receipts = re.findall(r"memory (\w+), (\d+) tokens sent", out)
        assert [status for status, _ in receipts] == ["raw"] * 3
        assert sorted(int(tokens) for _, tokens in receipts) == [
            int(tokens) for _, tokens in receipts
        ]
        memory = await proxy.memory()
        assert (memory.key.resource, memory.key.thread, memory.count) == (
            "user-42",
            "kitchen-rebuild",
            6,
        )


async def test_openai_sdk_without_memory(tmp_path: Path) -> None:
    """Where memory is off there is less of a receipt, and the conversation goes on all the same."""
    async with run_with_scripted_models(tmp_path, "enabled: false") as proxy:
        out = await run(proxy.base, sys.executable, EXAMPLES / "openai_sdk.py")
        assert re.findall(r"memory (.+)$", out, flags=re.M) == ["off, uncounted tokens sent"] * 3


async def test_readme_s_own(tmp_path: Path) -> None:
    """The program in README runs as it stands there, its address aside: with README's threshold,
    memory applies to turn two."""
    readme = README.read_text(encoding="utf-8")
    (text,) = re.findall(r"```python\n(.*?)```", readme, flags=re.S)
    (threshold,) = re.findall(
        r"OM_PROXY__MEMORY__OBSERVATION__MESSAGE_TOKENS=(\d+) om-proxy serve", readme
    )
    (asked,) = re.findall(r'"(Plan [^"]+)"', text)
    plan = "Day one: the castle, the tram, an early supper by the river. " * 20
    models = ScriptedServer({asked: {"role": "assistant", "content": plan}})
    memory_settings = f"observation: {{message_tokens: {threshold}}}"
    async with run_with_scripted_models(tmp_path, memory_settings, models=models) as proxy:
        with collect_turn_events() as turn_events:
            program = text.replace("http://127.0.0.1:8400", proxy.base)
            await run(proxy.base, sys.executable, "-c", program)
            assert [(await turn_events.next())["memory"] for _ in range(2)] == ["raw", "applied"]
        memory = await proxy.memory()
        assert (memory.key.resource, memory.key.thread, memory.count) == (
            "user-42",
            "trip-to-lisbon",
            4,
        )


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_readme_s_own_without_a_key(path: str) -> None:
    """README's program reaches `applied` against `om-proxy demo --serve` too, where the scripted
    model introduces itself at length, once. By each API it is the same but for README's lines: one,
    and for another SDK the one that makes the client."""
    readme = README.read_text(encoding="utf-8")
    assert "om-proxy demo --serve" in readme
    (program,) = re.findall(r"```python\n(.*?)```", readme, flags=re.S)
    changes = re.findall(rf"^\| `{path}` \| `((\w+) = .+)` \|$", readme, flags=re.M)
    assert len(changes) == {"/v1/responses": 1, "/v1/messages": 2}.get(path, 0)
    for line, name in changes:
        program, count = re.subn(rf"^( *){name} = .+$", rf"\1{line}", program, flags=re.M)
        assert count == 1
    async with serve_trial(0, log="off") as served:
        program = program.replace("http://127.0.0.1:8400", served.url)
        with collect_turn_events() as turn_events:
            out = await run(served.url, sys.executable, "-c", program)
            assert [(await turn_events.next())["memory"] for _ in range(2)] == ["raw", "applied"]
    assert out.count("I am a scripted model") == 1


async def test_quickstart_s_own(tmp_path: Path) -> None:
    """The program in the quick start runs as it stands there, its address aside."""
    (text,) = re.findall(r"```python\n(.*?)```", QUICKSTART.read_text(encoding="utf-8"), flags=re.S)
    async with run_with_scripted_models(tmp_path) as proxy:
        out = await run(
            proxy.base, sys.executable, "-c", text.replace("http://127.0.0.1:8400", proxy.base)
        )
        assert out.strip()
        memory = await proxy.memory()
        assert (memory.key.resource, memory.key.thread, memory.count) == (
            "user-42",
            "bridge-walks",
            2,
        )


def test_no_two_share_a_thread() -> None:
    """Whoever tries one after the other does not mix their conversations."""
    texts = [
        read_cells() if file.suffix == ".ipynb" else file.read_text(encoding="utf-8")
        for file in (*EXAMPLES.iterdir(), README, QUICKSTART)
        if file.is_file()
    ]
    named = [
        name for text in texts for name in re.findall(r'X-OM-Thread"?: "?([a-z][a-z-]+)"', text)
    ]
    assert len(named) == len(set(named)) == 10


async def test_openai_sdk_stream(tmp_path: Path) -> None:
    """The reply is printed as it comes, and the turns are stored when the streams have ended."""
    async with run_with_scripted_models(tmp_path) as proxy:
        out = await run(
            proxy.base, sys.executable, EXAMPLES / "openai_sdk_stream.py", "scripted-actor"
        )
        assert out.splitlines()[0] == "Noted: I am reading a book about bridges."
        memory = await proxy.memory()
        assert (memory.key.thread, memory.count) == ("reading-list", 4)
        assert all(b'"stream":true' in seen.body for seen in proxy.models.requests)


async def test_curl(tmp_path: Path) -> None:
    """One turn; the receipt stands among the headers, the reply in the body."""
    async with run_with_scripted_models(tmp_path) as proxy:
        try:
            out = await run(proxy.base, EXAMPLES / "curl.sh")
        except AssertionError as exc:
            if "curl: command not found" in str(exc):
                pytest.skip("curl is not installed")
            raise
        head, _, body = out.partition("\r\n\r\n")
        assert head.startswith("HTTP/1.1 200")
        assert "x-om-status: raw" in head
        assert "Noted: The worktop is 312 cm long." in body
        assert (await proxy.memory()).key.thread == "kitchen-worktop"


async def test_curl_without_a_key(tmp_path: Path) -> None:
    """It says what is missing, and asks nobody."""
    async with run_with_scripted_models(tmp_path) as proxy:
        env = {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"}
        process = await asyncio.create_subprocess_exec(
            EXAMPLES / "curl.sh",
            env=env | {"OPENAI_BASE_URL": f"{proxy}/v1"},
            stderr=asyncio.subprocess.PIPE,
        )
        _, err = await process.communicate()
        assert process.returncode != 0
        assert b"set OPENAI_API_KEY" in err
        assert proxy.models.requests == []


def composed() -> dict[str, Any]:
    service: dict[str, Any] = yaml.safe_load(
        (EXAMPLES / "compose.yaml").read_text(encoding="utf-8")
    )["services"]["om-proxy"]
    return service


def image_environment() -> dict[str, str]:
    """The variables the image sets."""
    (block,) = re.findall(
        r"^ENV (.*?[^\\])$", DOCKERFILE.read_text(encoding="utf-8"), flags=re.M | re.S
    )
    return dict(part.split("=", 1) for part in block.replace("\\\n", " ").split())


def test_the_composed_service_s_settings() -> None:
    """The variables of image and compose file are settings of ours, and the ports meet."""
    service = composed()
    env = (
        image_environment() | service["environment"] | {"OM_PROXY_ADMIN_TOKEN": "0123456789abcdef"}
    )
    ours = {name: value for name, value in env.items() if name.startswith("OM_PROXY")}
    assert len(ours) == 4
    settings = parse("", env=ours)
    assert not settings.server.is_loopback
    assert settings.server.admin_token is not None
    assert settings.storage.url == "sqlite:////data/om-proxy.db"
    (port,) = service["ports"]
    assert int(port.rpartition(":")[2]) == settings.server.port


def test_the_composed_service_s_file() -> None:
    """The folder it mounts holds the file that is looked for, and what must be written is
    writable."""
    service = composed()
    mounts = dict(volume.split(":")[:2] for volume in service["volumes"])
    assert (EXAMPLES / "../config/om-proxy.yaml").resolve().is_file()
    assert mounts["../config"] == "/app/config"
    assert "WORKDIR /app" in DOCKERFILE.read_text(encoding="utf-8")
    assert mounts["om-data"] == "/data"
    assert (EXAMPLES / service["build"]).resolve() == DOCKERFILE.parent


def test_open_webui_is_composed() -> None:
    """The proxy gets valid settings, Open WebUI a key of the proxy's and its address, and every
    volume named is declared."""
    compose: Any = yaml.safe_load(
        (EXAMPLES / "compose-open-webui.yaml").read_text(encoding="utf-8")
    )
    services = compose["services"]
    base = yaml.safe_load((EXAMPLES / "compose.yaml").read_text(encoding="utf-8"))["services"][
        "om-proxy"
    ]
    assert services["om-proxy"]["extends"] == {"file": "compose.yaml", "service": "om-proxy"}
    variables = {
        name: re.sub(r"\$\{(\w+):.*\}", r"\1", value)
        for name, value in services["om-proxy"]["environment"].items()
    }
    config = EXAMPLES.parent / "config" / "om-proxy.yaml"
    settings = parse(config.read_text(encoding="utf-8"), env=variables)
    assert settings.upstream_for("qwen3:8b") == settings.upstream[0]
    assert settings.upstream[0].base_url == "http://ollama:11434/v1"
    webui = services["open-webui"]["environment"]
    (key,) = settings.auth.keys
    assert key.key.get_secret_value() == re.sub(r"\$\{(\w+):.*\}", r"\1", webui["OPENAI_API_KEY"])
    assert webui["OPENAI_API_BASE_URL"] == "http://om-proxy:8400/v1"
    assert webui["ENABLE_FORWARD_USER_INFO_HEADERS"] == "true"
    named = {
        volume.split(":")[0]
        for service in services.values()
        for volume in service.get("volumes", ())
    }
    named |= {volume.split(":")[0] for volume in base["volumes"] if not volume.startswith(".")}
    assert named == set(compose["volumes"])
