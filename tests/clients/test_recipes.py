"""The recipes and programs of docs/clients: there is one of each for every client, short, and what
judges them can say no."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.memory.model import Key
from om_proxy.settings.config import parse
from om_proxy.settings.identity.callers import identify
from om_proxy.testing.scripted import RecordedRequest
from tests.clients import recipes
from tests.clients.conversation import conversation, price
from tests.clients.examples import PROGRAMS_OF_CLIENTS
from tests.clients.judging import the_prompt_holds
from tests.clients.playing import CLIENTS, PROGRAMS, split_name

SCRIPT = Path(__file__).parents[2] / "scripts" / "clients"


def test_every_client_has_its_recipe() -> None:
    """And every recipe its client, its lines in the index of results, and a program that is used."""
    assert sorted({split_name(name)[0] for name in CLIENTS}) == recipes.names()
    index = (recipes.DOCS / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[.+?\]\((.+?)\.md\) \| ([a-z/-]+) \|", index, flags=re.M)
    assert sorted(map("/".join, listed)) == sorted(CLIENTS)
    assert set(PROGRAMS_OF_CLIENTS) <= set(recipes.names())
    programs = {client.program for client in CLIENTS.values()}
    assert programs | {"talk.py", "talk.mjs"} == {
        file.name for file in PROGRAMS.iterdir() if file.is_file()
    }


@pytest.mark.parametrize("name", CLIENTS)
def test_recipe(name: str) -> None:
    """Short; says how to install, where om-proxy is, and what names the thread."""
    page, api, _ = split_name(name)
    recipe = recipes.recipe(page, api)
    written = "".join(recipe.files.values())
    assert len(recipe.text.splitlines()) <= 30
    assert recipe.installs
    assert (recipes.ADDRESS if api == "messages" else f"{recipes.ADDRESS}/v1") in written
    assert (
        re.search(r"X-OM-Thread|FORWARD_USER_INFO_HEADERS", written)
        or "x-session-affinity" in recipe.text
    )
    if serves := CLIENTS[name].serves:
        assert f"--port {serves[0]}" in recipe.files["serve.sh"]


@pytest.mark.parametrize("name", CLIENTS)
def test_configurations_are_valid(name: str) -> None:
    """What a recipe says of om-proxy's own configuration is accepted by it."""
    recipe = recipes.recipe(split_name(name)[0])
    for text in [
        recipe.files.get("om-proxy.yaml", ""),
        *re.findall(r"`(upstream: .+?)`", recipe.text),
    ]:
        parse(text)
    for file, text in recipe.files.items():
        if file.endswith((".yaml", ".json")):
            assert yaml.safe_load(text)


def test_two_models_of_a_chat_have_two_memories() -> None:
    """What the recipe says of models that answer at once gives each its own tenant."""
    text = recipes.recipe("open-webui").text
    (written,) = re.findall(r"`(auth: .+?)`", text, re.DOTALL)
    env = {"LEFT_KEY": "left-key-of-sixteen", "RIGHT_KEY": "right-key-of-sixteen"}
    identity = EdgeConfig.from_settings(parse(written, env=env)).identity
    callers = [
        identify(
            [
                (b"authorization", f"Bearer {key}".encode()),
                (b"x-openwebui-chat-id", b"one-chat"),
                (b"x-openwebui-user-id", b"one-user"),
            ],
            identity,
            b"a secret",
        )
        for key in env.values()
    ]
    assert [caller.key for caller in callers] == [
        Key(tenant, "one-user", "one-chat") for tenant in ("left", "right")
    ]


def test_the_script_knows_them_all() -> None:
    """Asked for one it does not know, it names every client and starts nothing."""
    asked = subprocess.run([SCRIPT, "no-such-client"], capture_output=True, text=True, check=False)
    assert asked.returncode == 2
    assert sorted(asked.stderr.split()[-len(recipes.names()) :]) == recipes.names()


@pytest.mark.parametrize("file", ["talk.py", "talk.mjs"])
def test_every_language_lends_the_same_tool(file: str) -> None:
    """What `price` answers is written once in each, and is what the conversation expects."""
    (said,) = re.findall(
        r'return f"(.+)"|=> `(.+)`;', (PROGRAMS / file).read_text(encoding="utf-8")
    )
    answer = "".join(said).replace("$", "").replace("{item}", "cork")
    assert re.sub(r"\{20 \+ 3 \* (?:len\(item\)|item\.length)\}", "32", answer) == price("cork")


@pytest.mark.parametrize("name", CLIENTS)
def test_a_recipe_can_ask_for_events(name: str, tmp_path: Path) -> None:
    """Its files say one header more, and are still valid. Open WebUI has no place for one."""
    page, api, _ = split_name(name)
    recipe = recipes.recipe(page, api)
    places = recipe.ask_for_events("inline,text")
    assert bool(places) == (page != "open-webui")
    recipe.write(tmp_path, places)
    written = {file: (tmp_path / file).read_text(encoding="utf-8") for file in recipe.files}
    assert "".join(written.values()).count("X-OM-Events") == len(places) <= 1
    for file, text in written.items():
        if file.endswith((".yaml", ".json")):
            assert yaml.safe_load(text)
        if file.endswith(".py"):
            compile(text, file, "exec")


TURNS = conversation(None)
NOTED = {
    "role": "system",
    "content": "About before.\n\n<observations>\n* 🔴 (10:00) A flat\n</observations>",
}


def asked(*turns: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": TURNS[n].say} for n in turns]


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        pytest.param([*asked(12, 13)], "notes", id="no notes"),
        pytest.param([NOTED, *asked(11, 13)], "gap", id="a turn is missing in the tail"),
        pytest.param([NOTED, *asked(11, 12)], "gap", id="the newest turn is missing"),
        pytest.param([NOTED, *asked(*range(14))], "no longer", id="everything is still sent"),
        pytest.param([NOTED], "newest", id="nothing is raw"),
    ],
)
def test_a_prompt_that_does_not_hold(messages: list[dict[str, Any]], why: str) -> None:
    """The judge says no to each way in which a prompt can be wrong."""
    with pytest.raises(AssertionError, match=why):
        the_prompt_holds(seen(messages), TURNS)
    the_prompt_holds(seen([NOTED, *asked(12, 13)]), TURNS)


def seen(messages: list[dict[str, Any]]) -> RecordedRequest:
    body = orjson.dumps({"model": "m", "messages": messages})
    return RecordedRequest(
        body, "m", tuple(messages), 0, 0, 0, {"role": "assistant", "content": ""}, ()
    )
