"""The three profiles people ask for stand in docs/guides/profiles.md and in config/om-proxy.yaml,
and are the same ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from om_proxy.settings.config import parse
from om_proxy.settings.config.report import list_warnings

ROOT = Path(__file__).parents[1]
NAMES = ("long agent runs", "chat with daily visits", "cheap actor")


def of_page() -> dict[str, str]:
    text = (ROOT / "docs" / "guides" / "profiles.md").read_text(encoding="utf-8")
    found = re.findall(r"```yaml\n# ([\w ]+): [^\n]*\n(memory:\n.*?)```", text, flags=re.S)
    return dict(found)


def of_config() -> dict[str, str]:
    text = (ROOT / "config" / "om-proxy.yaml").read_text(encoding="utf-8")
    found = re.findall(r"^# ([\w ]+): .*\n(?:#(?: .*)?\n)*((?:#\| .*\n?)+)", text, flags=re.M)
    return {name.lower(): re.sub(r"^#\| ", "", lines, flags=re.M) for name, lines in found}


def test_the_same_three() -> None:
    """Whoever copies from either gets the same."""
    page, config = of_page(), of_config()
    assert tuple(page) == tuple(config) == NAMES
    assert {name: yaml.safe_load(text) for name, text in page.items()} == {
        name: yaml.safe_load(text) for name, text in config.items()
    }


@pytest.mark.parametrize("name", NAMES)
def test_check_has_nothing_to_say(name: str) -> None:
    """A profile is valid, and nothing in it disappoints: `om-proxy check` warns of none."""
    assert list_warnings(parse(of_page()[name])) == []
