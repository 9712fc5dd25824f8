"""The closed lists of statuses and reasons: the code uses each word, and the documentation explains
it."""

from __future__ import annotations

import ast
from collections import Counter
from enum import StrEnum
from pathlib import Path

import pytest

from om_proxy.common.reasons import Reason, Status
from om_proxy.edge.vocabulary import REASON_ROWS

PACKAGE = Path(__file__).parents[2] / "proxy" / "om_proxy"
LISTS = {PACKAGE / "common" / "reasons.py", PACKAGE / "edge" / "vocabulary.py"}


def find_members(words: type[StrEnum]) -> set[str]:
    """List the members that some module outside the lists names."""
    return {
        node.attr
        for file in set(PACKAGE.rglob("*.py")) - LISTS
        if words.__name__ in (text := file.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == words.__name__
    }


@pytest.mark.parametrize("words", [Status, Reason])
def test_every_word_is_said(words: type[StrEnum]) -> None:
    """Every word of the lists is used by code."""
    assert find_members(words) == set(words.__members__)


def test_every_reason_is_described_once() -> None:
    """docs/reference/reasons.md explains each reason."""
    assert Counter(name for row in REASON_ROWS for name in row.names) == Counter(Reason)


def test_only_the_log_says_a_reason_without_a_status() -> None:
    """A receipt has a status beside every reason."""
    assert [row.names for row in REASON_ROWS if not row.sent_with] == [(Reason.REPLY_TOO_LARGE,)]
