"""No name that a client made up becomes a label."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from om_proxy.agents.models import find_listed_name
from om_proxy.memory.model import Key
from om_proxy.observability.figures.label_values import (
    MAX_CACHED_MODELS,
    LabelLimit,
    ModelLabels,
    ThreadLabels,
    list_plain_names,
)
from om_proxy.settings.config import parse

KEY = Key("tenant", "ada", "secret plans")
SETTINGS = """
upstream:
  - {name: own, base_url: "http://h/v1", match: [llama-own, "gpt-*"]}
models: {mine: {}, "o?": {}, "[ab]": {}}
"""


def test_names_without_a_wildcard() -> None:
    assert list_plain_names(parse(SETTINGS)) == {"llama-own", "mine"}


def create_models(limit: int = 200, *configured: str) -> ModelLabels:
    models = ModelLabels(find_listed_name, LabelLimit(limit))
    models.configure(frozenset(configured))
    return models


@pytest.mark.parametrize(
    ("model", "label"),
    [
        ("gpt-4o", "gpt-4o"),
        ("openai/gpt-4o", "gpt-4o"),
        ("canary-of-ada/gpt-4o", "gpt-4o"),
        ("mine", "mine"),
        ("Mine", "other"),
        ("gpt-4o ", "other"),
        ('gpt-4o",evil="1', "other"),
        ("gpt-4o\n", "other"),
        ("two\nlines", "other"),
        ("x" * 1_000_000, "other"),
        ("/" * 5_000, "other"),
        ("", "other"),
        (None, "other"),
    ],
)
def test_a_model_counts_under_a_known_name_only(model: str | None, label: str) -> None:
    assert create_models(200, "mine", "two\nlines").label(model) == label


def test_models_beyond_the_limit_are_other() -> None:
    models = create_models(2, "a", "b", "c")
    assert [models.label(name) for name in "abcab"] == ["a", "b", "other", "a", "b"]


def test_a_model_that_is_refused_for_a_moment(tmp_path: Path) -> None:
    """While another process writes, it is `other`, and no longer."""
    file = tmp_path / "models"
    models = ModelLabels(find_listed_name, LabelLimit(9, file))
    with file.open("w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        assert models.label("gpt-4o") == "other"
    assert models.label("gpt-4o") == "gpt-4o"


def test_hostile_names_are_not_kept() -> None:
    """The cache is bounded, and known names survive it."""
    models = create_models(200, "mine")
    for number in range(3 * MAX_CACHED_MODELS):
        assert models.label(f"made-up-{number}") == "other"
    assert len(models._labels) <= MAX_CACHED_MODELS
    assert models.label("mine") == "mine"


def test_another_configuration_names_other_models() -> None:
    models = create_models(200)
    assert models.label("mine") == "other"
    models.configure(frozenset({"mine"}))
    assert models.label("mine") == "mine"


def test_threads_count_under_their_label() -> None:
    def label(key: Key) -> str:
        return f"label of {len(key.thread)}"

    def list_labels(limit: int, *, resources: bool, threads: bool) -> tuple[str, ...]:
        labels = ThreadLabels(
            label, LabelLimit(limit), has_resources=resources, has_threads=threads
        )
        assert labels.is_on is (resources or threads)
        return labels.list_labels(KEY)

    assert list_labels(9, resources=True, threads=True) == (
        "resource",
        "label of 0",
        "thread",
        "label of 12",
    )
    assert list_labels(9, resources=False, threads=True) == ("thread", "label of 12")
    assert list_labels(9, resources=True, threads=False) == ("resource", "label of 0")
    assert list_labels(0, resources=True, threads=True) == ("resource", "other", "thread", "other")


def test_values_up_to_the_limit() -> None:
    limit = LabelLimit(2)
    assert [limit.admit(value) for value in ("a", "b", "c", "a")] == [True, True, False, True]


def test_processes_share_the_limit(tmp_path: Path) -> None:
    """A value that one process admitted is admitted by the other, and counts once."""
    file = tmp_path / "models"
    first, second = LabelLimit(3, file), LabelLimit(3, file)
    assert [first.admit("a"), second.admit("b"), first.admit("b")] == [True, True, True]
    assert [first.admit("c"), second.admit("d"), second.admit("c")] == [True, False, True]
    assert file.read_text().split() == ["a", "b", "c"]


def test_a_held_lock_delays_nobody(tmp_path: Path) -> None:
    """The value is `other` for now, and is asked for again."""
    file = tmp_path / "models"
    limit = LabelLimit(3, file)
    with file.open("w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        assert limit.admit("a") is None
    assert limit.admit("a")


def test_a_line_that_was_cut_off(tmp_path: Path) -> None:
    """A process that was killed while it wrote."""
    file = tmp_path / "models"
    file.write_text("gpt-4o\ngpt-4")
    limit = LabelLimit(9, file)
    assert limit.admit("o3")
    assert LabelLimit(9, file).admit("gpt-4o")
    assert file.read_text() == "gpt-4o\ngpt-4\no3\n"


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    assert LabelLimit(3, tmp_path / "gone" / "models").admit("a") is None
