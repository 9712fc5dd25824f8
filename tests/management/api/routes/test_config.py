"""The settings in force: what the admin token sees, what a caller sees, and what nobody does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from om_proxy import __version__
from om_proxy.storage.promises import create_sqlite_promise, list_promises
from om_proxy.storage.shared.migrate import list_migrations
from tests.e2e.running import run_with_scripted_models

ADMIN_TOKEN = "a-long-admin-token"
CONFIG = f"""server: {{admin_token: {ADMIN_TOKEN}}}
            models: {{"scripted-*": {{observation: {{instruction: "Keep figures of zanzibar."}}}}}}
"""
ADMIN, OWN = {"x-om-admin": ADMIN_TOKEN}, {"authorization": "Bearer sk-a"}


async def read_config(tmp_path: Path, headers: dict[str, str], query: str = "") -> dict[str, Any]:
    async with run_with_scripted_models(tmp_path, more=CONFIG) as run:
        answer = await run.http.get(f"{run.base}/om/v1/config{query}", headers=headers)
        assert answer.status_code == 200
        assert ADMIN_TOKEN not in answer.text
        found: dict[str, Any] = answer.json()
        return found


async def test_the_admin_token_sees_each_setting_with_its_origin(tmp_path: Path) -> None:
    config = await read_config(tmp_path, ADMIN, "?model=scripted-actor")
    settings = {item["name"]: item for item in config["items"]}
    assert (config["program_version"], config["is_complete"]) == (__version__, True)
    assert settings["server.admin_token"]["value"] == "(set)"
    instruction = settings["memory.observation.instruction"]
    assert instruction["value"] == "Keep figures of zanzibar."
    assert instruction["origin"].startswith('models["scripted-*"]')
    assert settings["limits.headers"]["origin"] == "default"
    assert settings["upstream[0].name"]["words"].startswith("The name of the server")
    assert all(item["words"] for item in config["items"])
    assert config["store"] == {
        "kind": "sqlite",
        "durable": "fsync",
        "encrypted": False,
        "separate_keys": False,
        "has_index": True,
        "erases": "now",
        "schema_version": list_migrations("sqlite")[-1].number,
        "promises": [*list_promises(create_sqlite_promise(is_in_memory=False))],
    }


async def test_a_caller_sees_how_its_memory_works(tmp_path: Path) -> None:
    """It sees no address, no file and no instruction of the operator."""
    config = await read_config(tmp_path, OWN, "?model=scripted-actor")
    names = {item["name"] for item in config["items"]}
    assert "memory.observation.message_tokens" in names
    assert {name.partition(".")[0] for name in names} == {"memory", "context"}
    assert not config["is_complete"]
    assert config["store"] is None
    assert {item["origin"] for item in config["items"]} == {None}
    assert "zanzibar" not in str(config)
    assert "http" not in str(config)


async def test_a_thread_says_which_settings_are_its_own(tmp_path: Path) -> None:
    async with run_with_scripted_models(tmp_path, more=CONFIG) as run:
        await run.chat("crates").say("Where is crate 7?")
        path = f"{run.base}/om/v1/threads/crates/settings"
        change = {"observation": {"message_tokens": 9000}}
        assert (await run.http.patch(path, headers=OWN, json=change)).status_code == 200
        items = {
            item["name"]: item for item in (await run.http.get(path, headers=OWN)).json()["items"]
        }
    own = {name: item["value"] for name, item in items.items() if item["origin"] is not None}
    assert own == {"memory.observation.message_tokens": "9000"}
    assert items["memory.observation.message_tokens"]["origin"] == "the thread's own"
