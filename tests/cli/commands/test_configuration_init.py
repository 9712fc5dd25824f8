"""`om-proxy init`: the file it writes, and the file it does not overwrite."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from om_proxy.settings.config import Settings, load, parse
from tests.cli.command_line import ROOT, run_om_proxy


def test_init_writes_the_annotated_file(tmp_path: Path) -> None:
    """It writes the project's own file, which `check` then reads without an option."""
    done = run_om_proxy("init", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    written = tmp_path / "config" / "om-proxy.yaml"
    assert written.read_text(encoding="utf-8") == (ROOT / "config" / "om-proxy.yaml").read_text(
        encoding="utf-8"
    )
    assert run_om_proxy("check", cwd=tmp_path).stdout.startswith("settings: config/om-proxy.yaml\n")


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    """An existing file stays as it is, and the error says what to do."""
    (tmp_path / "mine.yaml").write_text("memory: false\n")
    done = run_om_proxy("init", "mine.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "mine.yaml exists already" in done.stderr
    assert (tmp_path / "mine.yaml").read_text() == "memory: false\n"


def test_init_where_nothing_may_be_written(tmp_path: Path) -> None:
    """A path below a file is a one-line error."""
    (tmp_path / "file").touch()
    done = run_om_proxy("init", "file/om-proxy.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert re.match(r"om-proxy: file/om-proxy\.yaml .*\n$", done.stderr)


FILE = Path(__file__).parents[3] / "config" / "om-proxy.yaml"
LINES = FILE.read_text(encoding="utf-8").splitlines()


def keys(model: type[BaseModel], above: str = "") -> set[str]:
    """Every key of the settings, as a dotted path."""
    names = set()
    for name, field in model.model_fields.items():
        annotation: Any = field.annotation
        inner_model = getattr(annotation, "__args__", (annotation,))[0]
        names.add(f"{above}{name}")
        if (
            isinstance(inner_model, type)
            and issubclass(inner_model, BaseModel)
            and name not in ("keys", "webhooks")  # lists that are empty by default
        ):
            names |= keys(inner_model, f"{above}{name}.")
    return names


def written_keys() -> dict[str, int]:
    """Every key of the file with its line, counted from 0."""
    lines_by_name: dict[str, int] = {}

    def walk(node: yaml.Node, above: str) -> None:
        if isinstance(node, yaml.SequenceNode):
            for item in node.value:
                walk(item, above)
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                # of a list, the first item explains its keys
                lines_by_name.setdefault(f"{above}{key.value}", key.start_mark.line)
                walk(value, f"{above}{key.value}.")

    root = yaml.compose(FILE.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    assert root is not None
    walk(root, "")
    return lines_by_name


def test_the_file_holds_the_defaults() -> None:
    """Using the shipped file unchanged is the same as using none."""
    assert load(FILE, {}).model_dump() == Settings().model_dump()


def test_every_key_stands_in_the_file() -> None:
    """The file has every setting, and no other key."""
    assert set(written_keys()) == keys(Settings)


SECTIONS_WITHOUT_WORDS = {
    "server",
    "auth",
    "storage",
    "background",
}  # their name says it, their keys say the rest


@pytest.mark.parametrize(
    ("key", "number"),
    [(k, n) for k, n in written_keys().items() if k not in SECTIONS_WITHOUT_WORDS],
)
def test_every_key_is_explained(key: str, number: int) -> None:
    """Each key has a comment above it, in lines of at most 100 characters."""
    name = key.rpartition(".")[2]
    assert re.match(rf"\s*(- )?{name}:", LINES[number])
    assert re.match(r"\s*# \S.{5,}", LINES[number - 1])
    assert len(LINES[number - 1]) <= 100


def profiles() -> list[str]:
    """The profiles, without the comment marks."""
    text = "\n".join(LINES)
    return [
        re.sub(r"^#\| ", "", part, flags=re.M)
        for part in re.findall(r"(?:^#\| .*\n?)+", text, flags=re.M)
    ]


def test_there_are_three_profiles() -> None:
    """Long agent runs, chat with daily visits, cheap actor."""
    assert len(profiles()) == 3


@pytest.mark.parametrize("text", profiles())
def test_profiles_work(text: str) -> None:
    """A copied profile is a valid file that changes something."""
    assert parse(text).model_dump() != Settings().model_dump()
