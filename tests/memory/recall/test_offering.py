"""When the tool is offered; tests/wire/apis/chat/look_ups/test_recall_tool.py has the requests."""

from __future__ import annotations

import pytest

from om_proxy.memory.recall.offering import Offer, OwnNames, ToolUse, decide_offering


def test_a_refusal_counts_last() -> None:
    """What the request itself says is told before what its model server refused."""
    plain = ToolUse(1, False, frozenset())
    assert decide_offering(plain, is_refused=True) == (Offer.REFUSED, None)
    assert decide_offering(plain._replace(choices=2), is_refused=True).word is Offer.CHOICES
    assert decide_offering(plain, is_refused=False).tool == "recall"


@pytest.mark.parametrize(
    ("wants_json", "calls_tools", "word"),
    [(False, True, Offer.OFFERED), (False, False, Offer.UNSURE), (True, True, Offer.JSON)],
)
def test_automatic_offers(wants_json: bool, calls_tools: bool, word: Offer) -> None:
    """Only where the tool is sure to work; what is refused or ambiguous stays so."""
    use = ToolUse(1, False, frozenset(), wants_json)
    found = decide_offering(use, is_refused=False, is_automatic=True, calls_tools=calls_tools)
    assert found.word is word
    assert decide_offering(use, is_refused=False).word is Offer.OFFERED
    refused = decide_offering(use, is_refused=True, is_automatic=True, calls_tools=calls_tools)
    assert refused.tool is None


@pytest.mark.parametrize(
    ("name", "is_own"),
    [
        ("recall", True),
        ("Recall", True),
        ("functions.recall", True),
        ("functions.Recall", True),
        ("recaller", False),
        ("x.recall", False),
        ("functions.", False),
        ("", False),
        (None, False),
    ],
)
def test_names_by_which_models_call_it(name: str | None, is_own: bool) -> None:
    """A name of a client's tool is the client's, but for the name that was offered."""
    assert OwnNames("recall").has(name) == is_own
    assert OwnNames("recall", frozenset([name or ""])).has(name) == (name == "recall")


@pytest.mark.parametrize(
    ("name", "may_begin"),
    [
        ("", True),
        ("rec", True),
        ("R", True),
        ("functions.r", True),
        ("f", False),
        ("recalls", False),
    ],
)
def test_names_that_are_not_complete(name: str, may_begin: bool) -> None:
    assert OwnNames("recall").may_begin(name) == may_begin
