"""Model servers that refused the tool are remembered, each with the model that was asked for."""

from __future__ import annotations

from om_proxy.apis.registry import CHAT
from om_proxy.edge.recall_offers import REFUSED_FOR_S, RecallOffers
from om_proxy.memory.recall.offering import Offer

REQUEST = CHAT.parse_request(b'{"model":"m","messages":[{"role":"user","content":"x"}]}')


def decide(offers: RecallOffers, upstream: str = "u", tenant: str = "t") -> Offer | None:
    record = offers.decide(REQUEST, tenant, upstream, 4)
    return record and record.word


def test_two_refusals_in_a_row() -> None:
    """Then the tool is not offered to this server and model for an hour, and to others it is; and to
    the requests of other tenants."""
    now = 0.0
    offers = RecallOffers(lambda: now)
    offers.count_refused("t", "u", "m")
    assert decide(offers) is Offer.OFFERED
    offers.count_refused("t", "u", "m")
    assert decide(offers) is Offer.REFUSED
    assert decide(offers, "other") is Offer.OFFERED
    assert decide(offers, tenant="other") is Offer.OFFERED
    now = REFUSED_FOR_S
    assert decide(offers) is Offer.OFFERED


def test_an_accepted_request_between_them() -> None:
    offers = RecallOffers(lambda: 0.0)
    offers.count_refused("t", "u", "m")
    offers.count_accepted("t", "u", "m")
    offers.count_refused("t", "u", "m")
    assert decide(offers) is Offer.OFFERED


def test_tools_that_cannot_be_read() -> None:
    odd = CHAT.parse_request(b'{"messages":[{"role":"user","content":"x"}],"tools":7}')
    assert RecallOffers(lambda: 0.0).decide(odd, "t", "u", 4) is None
