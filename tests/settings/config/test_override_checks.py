"""Overrides that contradict each other are refused when the file is read, not when a request
matches both."""

from __future__ import annotations

import fnmatch
import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.common.errors import ConfigError
from om_proxy.settings.config import parse
from om_proxy.settings.config.override_checks import can_globs_meet

BASE = """
upstream: [{name: u, match: ["*"], base_url: "http://127.0.0.1:1/v1"}]
memory: {model: openai/observer}
"""


@pytest.mark.parametrize(
    "overrides",
    [
        # one sets the key, the other a model of another provider
        """
        models: {"gpt-*": {memory: {api_key: k, model: openai/x}}}
        resources: {"team-*": {memory: {model: anthropic/y}}}
        """,
        # neither glob matches the other; `gpt-4-mini` matches both
        """
        models:
          "gpt-*": {memory: {observation: {message_tokens: 5000, buffer_tokens: false}}}
          "*-mini": {memory: {observation: {buffer_tokens: 9000}}}
        """,
    ],
)
def test_overrides_that_meet_are_checked_together(overrides: str) -> None:
    with pytest.raises(ConfigError, match="matches too"):
        parse(BASE + re.sub("^        ", "", overrides, flags=re.M))


@pytest.mark.parametrize(
    "overrides",
    [
        """
        models:
          "gpt-*": {memory: {observation: {message_tokens: 5000, buffer_tokens: false}}}
          "claude-*": {memory: {observation: {buffer_tokens: 9000}}}
        """,
        """
        models: {"gpt-*": {memory: {api_key: k, model: openai/x}}}
        resources: {"team-*": {memory: {observation: {message_tokens: 5000}}}}
        """,
    ],
)
def test_overrides_that_do_not_contradict_are_taken(overrides: str) -> None:
    parse(BASE + re.sub("^        ", "", overrides, flags=re.M))


@pytest.mark.parametrize(
    ("first", "second", "meet"),
    [
        ("gpt-*", "*-mini", True),
        ("gpt-*", "claude-*", False),
        ("a?c", "ab?", True),
        ("a?c", "ab", False),
        ("*", "", True),
        ("a*b*c", "*x*", True),
        ("*a", "*b", False),
        ("a*", "b*", False),
        ("gpt-4", "gpt-4", True),
        # a set of characters: only what one glob says of the other is known
        ("gpt-[45]", "gpt-4", True),
        ("gpt-[45]", "gpt-*", True),
        ("gpt-[45]", "*-[45]", False),
    ],
)
def test_globs_that_meet(first: str, second: str, meet: bool) -> None:
    assert can_globs_meet(first, second) is meet
    assert can_globs_meet(second, first) is meet


GLOBS = st.text(alphabet="ab*?", max_size=6)


@given(GLOBS, GLOBS, st.text(alphabet="ab", max_size=8))
def test_a_name_that_both_match_makes_them_meet(first: str, second: str, name: str) -> None:
    if fnmatch.fnmatchcase(name, first) and fnmatch.fnmatchcase(name, second):
        assert can_globs_meet(first, second)


NAMES = ["".join(letters) for count in range(7) for letters in product("ab", repeat=count)]


@given(st.text(alphabet="ab*?", max_size=3), st.text(alphabet="ab*?", max_size=3))
def test_globs_meet_in_a_name(first: str, second: str) -> None:
    """Globs of three characters that meet do so in a name of at most six."""
    both = [
        name
        for name in NAMES
        if fnmatch.fnmatchcase(name, first) and fnmatch.fnmatchcase(name, second)
    ]
    assert can_globs_meet(first, second) == bool(both)
