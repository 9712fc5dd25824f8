"""The calls that a piece of memory work has paid for."""

from __future__ import annotations

import pytest

from om_proxy.agents.model_access.llm import Answer, Image, Prompt, Target
from om_proxy.agents.model_access.retries import CallBill, PaidCall
from om_proxy.memory.token_prices import Usage
from tests.agents.scripted_llm import words

A = Target("a")
PROMPT = Prompt("be exact", ("one two three", Image("https://h/x.png")))


@pytest.mark.parametrize(
    ("answer", "paid"),
    [
        (
            Answer("t", "a-2", Usage(90, 40, 20, 8), "stop"),
            PaidCall("a", Usage(90, 40, 20, 8), False),
        ),
        (Answer("two words", "a-2"), PaidCall("a", Usage(5, 0, 0, 2), True)),
        (Answer("two words", "a-2", Usage(90)), PaidCall("a", Usage(90, 0, 0, 2), True)),
    ],
    ids=["reported", "not reported", "half reported"],
)
def test_an_answer(answer: Answer, paid: PaidCall) -> None:
    """The model is the one that was asked. Tokens that the server does not report are counted, and
    marked as estimated."""
    bill = CallBill()
    bill.add_answer(A, PROMPT, answer, words)
    assert (bill.calls, bill.usage) == ([paid], paid.usage)


def test_nothing_paid() -> None:
    assert CallBill().usage == Usage()
