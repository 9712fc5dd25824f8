"""The word for notes that a failing memory model has not made, as a table."""

import pytest
from msgspec.structs import replace

from om_proxy.memory.lifecycle.decisions import RequestState, explain_failure
from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.memory.model import Failures
from tests.memory.building import chat, memory

LIMITS = Limits()
NOW = 1_000.0
LONG, SHORT = 40, 10  # turns of 1 000 tokens a message: above and below `block_from_tokens`


@pytest.mark.parametrize(
    ("turns", "failures", "waited", "word"),
    [
        pytest.param(
            LONG,
            Failures(1, NOW + 60),
            False,
            "observer-late",
            id="would wait, and its thread backs off",
        ),
        pytest.param(
            LONG, Failures(8, NOW + 60, suspended=True), False, "observer-failing", id="parked"
        ),
        pytest.param(
            LONG, Failures(1, NOW - 1), False, "observer-failing", id="its back-off is over"
        ),
        pytest.param(
            LONG,
            Failures(1, NOW + 60),
            True,
            "observer-failing",
            id="has waited for the call that failed",
        ),
        pytest.param(
            SHORT, Failures(1, NOW + 60), False, "observer-failing", id="nothing it would wait for"
        ),
    ],
)
def test_explain_failure(turns: int, failures: Failures, waited: bool, word: str) -> None:
    """A back-off that spares a request its wait is told from every other trouble
    (docs/contributing/behaviour.md#wait)."""
    made = replace(memory(chat(turns, 1_000)), failures=failures)
    asked = RequestState(last_observable_seq=10**9, now=NOW)
    assert explain_failure(made, LIMITS, asked, waited=waited) == word
