"""The small models that make notes, and the dates on which models end.

The day they are held against moves with a release, not with the calendar: `scripts/release` gives
today's as OM_TEST_TODAY. A model that ends keeps nobody from other work.
"""

from __future__ import annotations

import os
import re
from datetime import date, timedelta
from pathlib import Path

import pytest

from om_proxy.agents import models
from om_proxy.agents.models import price_list, small_models
from om_proxy.cli.demo import stage

ROOT = Path(__file__).parents[1]
MODEL_NAME = re.compile(r"\b(?:claude|gpt|gemini|o\d)-[a-z0-9.-]*[a-z0-9]")
RECORDED_SESSION_PAGE = ROOT / "docs" / "guides" / "replay.md"  # a session as it was played
OPENAI, ROUTER = "https://api.openai.com/v1", "https://openrouter.ai/api/v1"
NOVEMBER = date(2026, 11, 28)
RELEASE_DAY = date.fromisoformat(os.environ.get("OM_TEST_TODAY", "2026-11-30"))


@pytest.mark.parametrize(
    ("actor", "base_url", "small"),
    [
        ("gpt-4o", OPENAI, "gpt-5-mini"),
        ("gpt-of-tomorrow", OPENAI, "gpt-5-mini"),
        ("claude-sonnet-4-5", "https://api.anthropic.com/v1", "claude-haiku-4-5"),
        (
            "gemini-3.5-flash",
            "https://generativelanguage.googleapis.com/v1beta/openai",
            "gemini-3.5-flash-lite",
        ),
        ("anthropic/claude-sonnet-4.5", ROUTER, "anthropic/claude-haiku-4.5"),
        ("openai/gpt-4o", ROUTER, "openai/gpt-5-mini"),
        ("meta-llama/llama-3.3-70b-instruct", ROUTER, None),
        # free, or open: others than its maker serve it, and the small model is its maker's own
        ("openai/gpt-4o:free", ROUTER, None),
        ("openai/gpt-oss-120b:free", ROUTER, None),
        ("openai/gpt-oss-20b", ROUTER, None),
        ("google/gemma-3-27b-it", ROUTER, None),
        ("deepseek/deepseek-chat-v3-0324", ROUTER, None),
        ("deepseek/deepseek-v4-pro", ROUTER, None),
        ("anthropic/claude-3.7-sonnet:thinking", ROUTER, "anthropic/claude-haiku-4.5"),
        # cheaper, and listed by other sellers alone
        ("anthropic/claude-3-haiku", ROUTER, None),
        ("anthropic/claude-3.5-haiku", ROUTER, None),
        ("claude-3-haiku-20240307", "https://api.anthropic.com/v1", None),
        ("openai/gpt-5-nano:nitro", ROUTER, None),
        ("gemma-3-27b-it", "https://generativelanguage.googleapis.com/v1beta/openai", None),
        # as cheap as the small one, or cheaper: it makes its own notes
        ("gpt-5-mini", OPENAI, None),
        ("gpt-4o-mini", OPENAI, None),
        ("anthropic/claude-haiku-4.5", ROUTER, None),
        # a server that says nothing about whose models it has
        ("gpt-4o", "http://127.0.0.1:4000/v1", None),
        ("gpt-4o", "https://api.openai.com.example/v1", None),
        ("gpt-4o", None, None),
    ],
)
def test_a_small_model(actor: str, base_url: str | None, small: str | None) -> None:
    """The small model belongs to the server that the actor is asked on, and costs less."""
    assert models.find_small_model(actor, base_url, NOVEMBER) == small


def test_a_model_that_has_ended_gives_way_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first name that is not past its date is taken; without one, there is no small model."""
    last_day = date(2026, 12, 10)
    for days, small in ((0, "gpt-5-mini"), (1, "gpt-5.4-nano")):
        today = last_day + timedelta(days)
        assert models.find_small_model("gpt-4o", OPENAI, today) == small
    monkeypatch.setitem(
        small_models.SMALL_MODELS_BY_HOST, "api.openai.com", ("gpt-4.1-nano", "gpt-5-nano")
    )
    assert models.find_small_model("gpt-4o", OPENAI, date(2026, 10, 22)) == "gpt-4.1-nano"
    assert models.find_small_model("gpt-4o", OPENAI, date(2026, 10, 23)) == "gpt-5-nano"
    monkeypatch.setitem(small_models.SMALL_MODELS_BY_HOST, "api.openai.com", ("gpt-4.1-nano",))
    # another day: the choice of a day is kept
    assert models.find_small_model("gpt-4o", OPENAI, date(2026, 10, 25)) is None


@pytest.mark.parametrize(
    "names",
    [
        *small_models.SMALL_MODELS_BY_HOST.values(),
        *small_models.SMALL_MODELS_BY_MAKER.values(),
        small_models.DEFAULT_MODELS,
    ],
)
def test_every_list_has_a_model_that_is_served(names: tuple[str, ...]) -> None:
    """Each name has a list price, and each list has a model that goes on for the time of the
    notice."""
    assert all(models.find_price(name) for name in names)
    day = RELEASE_DAY + small_models.DEPRECATION_NOTICE
    ends = [models.find_deprecation_date(name) for name in names]
    assert any(end is None or end > day for end in ends), f"add to {names} in small_models.py"


@pytest.mark.parametrize(
    ("model", "ended"),
    [
        # the plain name has the date, and the provider's own name has none
        ("gemini/gemini-2.5-flash", date(2026, 10, 20)),
        ("gemini-2.5-flash", date(2026, 10, 20)),
        # the other way round
        ("gemini-3.1-flash-lite-preview", date(2026, 5, 25)),
        # only its snapshots have a day, and the last one's counts
        ("gpt-5-mini", date(2026, 12, 11)),
        ("openai/gpt-5-mini", date(2026, 12, 11)),
        ("gpt-4o", date(2027, 1, 14)),
        ("au.anthropic.claude-sonnet-4-5", date(2027, 4, 8)),
        # a snapshot goes on
        ("claude-haiku-4-5", None),
        # Azure ends it on another day
        ("azure/gpt-5-mini", date(2027, 2, 9)),
        ("nobody/knows-this", None),
    ],
)
def test_the_day_on_which_a_model_ends(model: str, ended: date | None) -> None:
    """All names of a model at its provider are looked up, and the earliest day counts."""
    assert models.find_deprecation_date(model) == ended


def test_a_date_that_is_none() -> None:
    """A text that is no date says nothing."""
    assert price_list._parse_date("one day") is None


def test_a_model_that_ends_is_warned_of() -> None:
    """The warning begins 60 days ahead and names the day."""
    last_day = date(2026, 10, 20)
    for days, words in ((61, None), (60, "ends it on 2026-10-20"), (0, "has ended it")):
        found = models.list_model_warnings(
            "gemini/gemini-2.5-flash", today=last_day - timedelta(days=days)
        )
        assert len(found) == (words is not None)
        assert all(words in text for text in found if words)


def test_the_default_is_a_model_that_is_served() -> None:
    """`memory.model: default` names a model that gives no warning."""
    name = models.choose_default_model(RELEASE_DAY)
    assert models.list_model_warnings(name, today=RELEASE_DAY) == ()


def test_no_page_names_a_model_that_has_ended() -> None:
    """Readers copy the names of README, docs, examples and the configuration."""
    folders = [ROOT / name for name in ("docs", "examples", "config")]
    files = [ROOT / "README.md", *(file for folder in folders for file in folder.rglob("*.*"))]
    pages = [file for file in files if file.suffix != ".png" and file != RECORDED_SESSION_PAGE]
    ended = {
        (page.name, name)
        for page in pages
        for name in set(MODEL_NAME.findall(page.read_text(encoding="utf-8")))
        if (end := models.find_deprecation_date(name)) and end <= RELEASE_DAY
    }
    assert ended == set()


@pytest.mark.parametrize("name", [*stage.PRICED_ACTORS, stage.MEMORY_MODEL])
def test_the_demo_has_the_prices_of_models_that_are_served(name: str) -> None:
    """Its figures are printed."""
    end = models.find_deprecation_date(name)
    assert models.find_price(name)
    assert end is None or end > RELEASE_DAY
