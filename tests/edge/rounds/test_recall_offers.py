"""Model servers that refused the tool are remembered, each with the model that was asked for."""

from __future__ import annotations

import pytest

from om_proxy.edge.rounds.recall_offers import RecallOffers, offer_additions
from om_proxy.engine.policy import MemoryContext, Policy
from om_proxy.memory.recall.offering import Offer
from om_proxy.settings.config import parse
from om_proxy.wire.apis.additions import MAX_WAIT_S, Addition
from om_proxy.wire.apis.api import Request
from om_proxy.wire.apis.registry import CHAT

BODY = b'{"model":"m","messages":[{"role":"user","content":"x"}]}'
REQUEST = CHAT.parse_request(BODY)


def make_context(setting: str = "true", model: str = "unheard-of") -> MemoryContext:
    settings = parse(f"memory: {{retrieval: {setting}}}")
    return Policy(settings).context_of_request(model, "r", settings.upstream[0], ())


def decide(
    offers: RecallOffers,
    upstream: str = "u",
    tenant: str = "t",
    *,
    request: Request = REQUEST,
    setting: str = "true",
    model: str = "unheard-of",
) -> Offer | None:
    record, *_ = offer_additions(offers, request, tenant, upstream, make_context(setting, model))
    return record and record.word


def refuse_tool(offers: RecallOffers, body: bytes = BODY) -> None:
    """Have the server refuse a request with the tool, and accept it without."""
    request = CHAT.parse_request(body)
    use = CHAT.read_tool_use(request)
    assert use is not None
    trial = offers.begin_trial(request, "t", "u", use)
    assert trial.take_back(400) is Addition.FORM
    trial.acquit(Addition.FORM)
    assert trial.take_back(400) is Addition.TOOL
    trial.end(200)


def test_a_refusal_is_remembered() -> None:
    """Then the tool is not offered to this server and model for an hour, and to others it is; and to
    the requests of other tenants."""
    now = 0.0
    offers = RecallOffers(lambda: now)
    refuse_tool(offers)
    assert decide(offers) is Offer.REFUSED
    assert decide(offers, "other") is Offer.OFFERED
    assert decide(offers, tenant="other") is Offer.OFFERED
    now = MAX_WAIT_S
    assert decide(offers) is Offer.OFFERED


@pytest.mark.parametrize(
    "members",
    [
        b'"response_format":{"type":"json_object"}',
        b'"stream":true',
        b'"tools":[{}]',
        b'"reasoning_effort":"high"',
        b'"guided_json":{}',
    ],
)
def test_a_combination_is_remembered(members: bytes) -> None:
    """A server may take the tool, and not together with JSON, in a stream, or beside other tools or
    options."""
    offers = RecallOffers(lambda: 0.0)
    refuse_tool(offers, BODY.replace(b"{", b"{" + members + b",", 1))
    assert decide(offers) is Offer.OFFERED


def test_pictures() -> None:
    """A server that refuses the tool beside a picture is offered it with all other requests."""
    offers = RecallOffers(lambda: 0.0)
    shown = BODY.replace(b'"x"', b'[{"type":"image_url","image_url":{"url":"data:,"}}]')
    trial = offers.begin_trial(CHAT.parse_request(shown), "t", "u")
    trial.move_to_pictures()
    trial.move_to_pictures()  # twice is once
    trial.take_back(400)
    trial.take_back(400)
    trial.end(200)
    assert decide(offers, request=CHAT.parse_request(shown)) is Offer.REFUSED
    assert decide(offers) is Offer.OFFERED


def test_tools_that_cannot_be_read() -> None:
    odd = CHAT.parse_request(b'{"messages":[{"role":"user","content":"x"}],"tools":7}')
    assert decide(RecallOffers(lambda: 0.0), request=odd) is None


@pytest.mark.parametrize(
    ("members", "knows", "word"),
    [
        (b"", False, Offer.UNSURE),
        (b"", True, Offer.OFFERED),
        (b',"tools":[{"type":"function","function":{"name":"f"}}]', False, Offer.OFFERED),
        (b',"response_format":{"type":"json_object"}', True, Offer.JSON),
    ],
)
def test_an_automatic_offer(members: bytes, knows: bool, word: Offer) -> None:
    """A model that the client gives tools calls them, whatever a price list says."""
    request = CHAT.parse_request(BODY[:-1] + members + b"}")
    model = "gpt-4o" if knows else "unheard-of"
    found = decide(RecallOffers(lambda: 0.0), request=request, setting="auto", model=model)
    assert found is word


@pytest.mark.parametrize(
    ("setting", "model", "word"),
    [
        ("true", "unheard-of", Offer.OFFERED),
        ("auto", "unheard-of", Offer.UNSURE),
        ("auto", "gpt-4o", Offer.OFFERED),
        ("false", "gpt-4o", None),
    ],
)
def test_the_tool_is_offered_by_the_setting_and_the_model(
    setting: str, model: str, word: Offer | None
) -> None:
    offers = RecallOffers(lambda: 0.0)
    record, _, _ = offer_additions(offers, REQUEST, "t", "u", make_context(setting, model))
    assert (record and record.word) == word
