"""What recorded conversations cost without memory, as their provider counted."""

from __future__ import annotations

import pytest

from om_proxy.agents.models import Price
from om_proxy.proof.billing import ANTHROPIC, ANTHROPIC_HOUR, OPENAI, BilledTokens
from om_proxy.proof.conversation import Call, Conversation, Message, Usage
from om_proxy.proof.playing import Outcome, keep_thresholds, write_message
from om_proxy.proof.readers.registry import read_history
from om_proxy.proof.replay import (
    bill_outcome,
    bill_prompts,
    bill_recorded,
    examine,
    fit_meter,
    list_lost,
    replay,
)
from tests.e2e.replay import SHARED
from tests.proof.test_playing import converse, count_tokens_of

CODING_SESSION = SHARED / "coding-session.jsonl"


def call(size: int, usage: Usage | None, model: str = "claude-sonnet-4-5") -> Call:
    sent: tuple[Message, ...] = tuple(
        {"role": "user", "content": f"word {n} and so on"} for n in range(size)
    )
    return Call(sent, {"role": "assistant", "content": "Yes."}, 0.0, 1.0, model, usage)


def hold(*calls: Call) -> Conversation:
    return Conversation("c", None, "messages", (), calls)


def test_the_meter_is_fitted_to_the_provider_s_usage() -> None:
    """A provider that counts half as much again, with 500 tokens of tools in front."""
    sizes = [count_tokens_of(call(n, None).sent) for n in (2, 5, 9)]
    calls = [
        call(n, Usage(round(1.5 * size) + 500, 0, 0, 1))
        for n, size in zip((2, 5, 9), sizes, strict=True)
    ]
    meter = fit_meter(calls)
    assert meter.scale == pytest.approx(1.5, abs=0.01)
    assert meter.fixed_tokens == pytest.approx(500, abs=2)


def test_calls_that_found_nothing_lose_their_cache() -> None:
    usages = [Usage(10, 0, 10, 1), Usage(20, 10, 10, 1), Usage(30, 0, 30, 1)]
    assert list_lost([call(1, usage) for usage in usages]) == {2}


@pytest.mark.parametrize(
    ("model", "hour_tokens", "rules", "write_price"),
    [
        ("claude-sonnet-4-5", 0, ANTHROPIC, 3.75e-6),
        ("claude-sonnet-4-5", 9, ANTHROPIC_HOUR, 6e-6),
        ("gpt-4o", 0, OPENAI, 2.5e-6),
    ],
)
def test_the_provider_s_cache_is_known_by_the_model(
    model: str, hour_tokens: int, rules: object, write_price: float
) -> None:
    subject = examine(hold(call(1, Usage(10, 0, 9, 1, hour_tokens), model)))
    assert subject is not None
    assert subject.rules is rules
    assert subject.price is not None
    assert subject.price.cache_write == pytest.approx(write_price)


def test_what_the_options_choose_counts() -> None:
    price = Price(1, 2, 3, 4)
    subject = examine(hold(call(1, None)), "my-model", price)
    assert subject is not None
    assert (subject.actor, subject.price, subject.has_usage) == ("my-model", price, False)
    assert examine(hold()) is None


def test_a_settings_file_leads_to_no_other_machine() -> None:
    """Only rules are taken: no model, address, key, webhook or telemetry."""
    settings = {
        "upstream": [{"base_url": "https://elsewhere.example/v1"}],
        "telemetry": {"webhooks": [{"url": "https://elsewhere.example"}]},
        "memory": {
            "model": "x/y",
            "api_base": "https://elsewhere.example/v1",
            "retrieval": {"embedding": {"model": "x"}},
            "observation": {"message_tokens": 900, "model": "x/z", "api_key": "k"},
        },
    }
    assert keep_thresholds(settings) == {"memory": {"observation": {"message_tokens": 900}}}


def test_each_model_has_its_own_price() -> None:
    subject = examine(converse(2))
    assert subject is not None
    outcome = Outcome(BilledTokens(fresh=1_000_000), BilledTokens(fresh=1_000_000))
    bill = bill_outcome(outcome, subject, "gpt-5-mini")
    assert bill.dollars == pytest.approx(2.5 + 0.25)


def test_the_recorded_bill_is_met() -> None:
    """Within 5 % of what the session's provider charged for it."""
    if not CODING_SESSION.exists():
        pytest.skip("the recorded conversations are not here: ../shared/data")
    (conversation,) = read_history(CODING_SESSION)
    subject = examine(conversation)
    assert subject is not None
    recorded = bill_recorded(subject)
    simulated = bill_prompts(subject, [call.sent for call in subject.calls])
    assert recorded is not None
    assert recorded.dollars == pytest.approx(30.33, abs=0.01)
    assert simulated.dollars == pytest.approx(recorded.dollars, rel=0.05)


def test_conversations_that_memory_makes_dearer_come_first() -> None:
    """A long one becomes cheaper, and one just above the threshold does not."""
    settings = {"memory": {"observation": {"message_tokens": 2000}, "economy": "off"}}
    long = examine(converse(36), settings=settings)
    short = examine(converse(13), settings=settings)
    assert long is not None
    assert short is not None
    progress: list[tuple[int, int]] = []
    results = replay([long, short], lambda done, of: progress.append((done, of)))
    assert [result.subject is short for result in results] == [True, False]
    assert results[0].default_ratio > 1 > results[1].default_ratio
    assert list(results[0].with_memory) == ["auto", "inherit"]
    assert progress[-1] == (12, 12)


def test_messages_are_written_without_their_time() -> None:
    assert write_message({"role": "user", "content": "Hi", "created_at": 1.0}) == (
        b'{"role":"user","content":"Hi"}'
    )
