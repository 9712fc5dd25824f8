"""Read the recipes in docs/clients: the very files and commands that are written there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from om_proxy.common.apis import API_NAMES, ApiName

DOCS = Path(__file__).parents[2] / "docs" / "clients"
NO_RECIPES = ("README", "servers")
ADDRESS = "http://127.0.0.1:8400"  # as every recipe says it

_BLOCK = re.compile(
    r"^```(?P<language>\w+)(?: (?P<file>\S+))?\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)


# what a recipe says of its headers, as each language writes it → the same with one header more
_HEADER_PLACES = {
    '"X-OM-Resource": "user-42"': '"X-OM-Resource": "user-42", "X-OM-Events": "{}"',
    "X-OM-Resource: user-42}": 'X-OM-Resource: user-42, X-OM-Events: "{}"}}',
    '"apiKey": "{env:OPENAI_API_KEY}"': (
        '"apiKey": "{{env:OPENAI_API_KEY}}", "headers": {{"X-OM-Events": "{}"}}'
    ),
}


@dataclass(frozen=True)
class Recipe:
    name: str
    text: str
    api: ApiName

    @property
    def files(self) -> dict[str, str]:
        """The blocks that name a file behind their language, by its name. The one that is named as
        the API goes on where the page's `recipe` ends; those of other APIs are left out."""
        blocks = {
            block["file"]: block["text"] for block in _BLOCK.finditer(self.text) if block["file"]
        }
        for file in list(blocks):
            if Path(file).stem in API_NAMES:
                text, recipe = blocks.pop(file), f"recipe{Path(file).suffix}"
                if Path(file).stem == self.api:
                    blocks[recipe] = f"{blocks.get(recipe, '')}{text}"
        return blocks

    @property
    def installs(self) -> str:
        """The command that installs the client: scripts/clients runs it."""
        return str(re.findall(r"(?:pip|npm) install [^`\n]+", self.text)[0])

    def header(self, name: str) -> str | None:
        """The value the recipe gives this header; None where it leaves it to the client."""
        found = re.search(rf"{name}\W+([\w-]+)", "".join(self.files.values()))
        return found[1] if found else None

    def ask_for_events(self, choice: str) -> dict[str, str]:
        """Return what to replace, so that the client sends `X-OM-Events` too; empty: the recipe has
        no place for a header."""
        written = "".join(self.files.values())
        return {
            place: wider.format(choice)
            for place, wider in _HEADER_PLACES.items()
            if place in written
        }

    def write(self, folder: Path, places: Mapping[str, str]) -> None:
        """Write its files, each address in `places` (as written → as it is now) in place of the
        written one, and nothing else changed."""
        for name, text in self.files.items():
            placed = reduce(lambda now, place: now.replace(*place), places.items(), text)
            (folder / name).write_text(placed, encoding="utf-8")


def recipe(name: str, api: ApiName = "chat") -> Recipe:
    return Recipe(name, (DOCS / f"{name}.md").read_text(encoding="utf-8"), api)


def names() -> list[str]:
    return sorted(file.stem for file in DOCS.glob("*.md") if file.stem not in NO_RECIPES)
