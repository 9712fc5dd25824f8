"""Calls are answered from the log, tried again after faults of the transport alone, and kept within
the budget."""

import asyncio
import contextlib

import httpx
import pytest
import respx
from hypothesis import given, settings
from hypothesis import strategies as st

from om_proxy.agents.models import Price
from om_proxy.common.errors import UsageError
from om_proxy.proof.evaluation import call_log
from om_proxy.proof.evaluation.call_log import (
    BudgetReached,
    CallLog,
    CallMissing,
    LoggedModels,
    find_dollars,
)
from om_proxy.proof.evaluation.models import (
    ModelRefused,
    ModelUnavailable,
    ScriptedModel,
    parse_model,
)

PRICE = Price(1e-6, 4e-6, 0.5e-6, 1e-6)
URL = "http://127.0.0.1:9/v1"


def make_body(text="hello", max_tokens=50):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens}


def make_models(folder, answer=lambda _: "yes", price=PRICE, budget=None):
    async def reply(body, _gold):
        return answer(body)

    return LoggedModels(CallLog(folder), {"actor": ScriptedModel("s", reply, price)}, budget)


async def test_an_answer_of_the_log_is_not_asked_for_again(tmp_path):
    replies = iter(("first", "second"))
    models = make_models(tmp_path, lambda _: next(replies))
    first = [(await models.ask("actor:om", "q", make_body())).text for _ in range(2)]
    again = make_models(tmp_path, lambda _: pytest.fail("asked again"))
    second = [(await again.ask("actor:om", "q", make_body())).text for _ in range(2)]
    assert first == second == ["first", "second"], "the second of two equal calls is another call"
    assert again.spent == pytest.approx(models.spent)
    with pytest.raises(CallMissing, match="has no call with this prompt"):
        await LoggedModels(CallLog(tmp_path), {}).ask("actor:om", "q", make_body("another"))


@settings(max_examples=15, deadline=None)
@given(
    budget=st.floats(0, 0.01),
    calls=st.lists(st.tuples(st.text(max_size=300), st.integers(1, 400)), max_size=12),
)
def test_the_budget_is_never_exceeded(tmp_path_factory, budget, calls):
    folder = tmp_path_factory.mktemp("run")
    words = iter(range(10_000))
    models = make_models(folder, lambda body: "word " * body["max_tokens"], budget=budget)

    async def ask(text, max_tokens):
        with contextlib.suppress(BudgetReached):
            await models.ask("actor:om", str(next(words)), make_body(text, max_tokens // 2 + 1))

    async def ask_all():
        await asyncio.gather(*(ask(*call) for call in calls))

    asyncio.run(ask_all())
    assert models.spent <= budget


async def test_what_was_spent_before_counts(tmp_path):
    models = make_models(tmp_path, budget=0.0003)
    await models.ask("actor:om", "q", make_body())
    left = make_models(tmp_path, budget=models.spent)
    assert (await left.ask("actor:om", "q", make_body())).text == "yes", "the log costs nothing"
    with pytest.raises(BudgetReached, match="eval resume RUN --budget D"):
        await left.ask("actor:om", "q", make_body("another"))


@respx.mock
async def test_only_faults_of_the_transport_are_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(call_log, "FIRST_PAUSE_S", 0)
    route = respx.post(f"{URL}/chat/completions")
    answer = {"choices": [{"message": {"content": ""}}], "usage": {}}
    route.side_effect = [
        httpx.ConnectError("no"),
        httpx.Response(429),
        httpx.Response(503),
        httpx.Response(200, json=answer),
    ]

    def start():
        return LoggedModels(CallLog(tmp_path), {"actor": parse_model(f"m@{URL}", PRICE)})

    record = await start().ask("actor:om", "q", make_body())
    assert (record.attempts, record.text) == (4, ""), "an empty answer is an answer"
    route.side_effect = None
    route.respond(500)
    with pytest.raises(ModelUnavailable, match="did not answer 5 times"):
        await start().ask("actor:om", "q", make_body("another"))
    route.respond(401)
    count = route.call_count
    with pytest.raises(ModelRefused, match="OPENAI_API_KEY"):
        await start().ask("actor:om", "q", make_body("another"))
    assert route.call_count == count + 1


async def test_a_run_without_notes_does_not_go_on(tmp_path):
    models = LoggedModels(CallLog(tmp_path), {})
    with pytest.raises(CallMissing):
        await models.ask("memory", "1", make_body())
    with pytest.raises(CallMissing):
        models.raise_failure()


def test_cached_input_has_its_own_price():
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 60},
    }
    assert find_dollars({"usage": usage}, PRICE) == pytest.approx(40e-6 + 30e-6 + 40e-6)
    assert find_dollars({"usage": usage}, None) is None


@pytest.mark.parametrize(
    ("spec", "message"),
    [("script:genius", "the scripted models are"), ("m@nowhere", "write NAME@http")],
)
def test_a_model_that_is_none_is_named(spec, message):
    with pytest.raises(UsageError, match=message):
        parse_model(spec)


def test_a_name_alone_is_openais():
    model = parse_model("gpt-4o")
    assert (model.name, model.base_url) == ("gpt-4o", "https://api.openai.com/v1")
    assert model.price.input == pytest.approx(2.5e-6)
    assert parse_model("gemini/gemini-2.5-flash").price
