"""Facts reach every subscriber, once, before the emitter goes on."""

from __future__ import annotations

from om_proxy.facts import Fact, Facts, Forgotten, ForgottenMeanwhile
from om_proxy.memory.model import Key

KEY = Key("tenant", "resource", "thread")


def test_subscribers_hear_in_order() -> None:
    """A subscriber gets the facts that are emitted after it was attached."""
    heard: list[tuple[str, Fact]] = []
    facts = Facts(lambda fact: heard.append(("first", fact)))
    earlier, later = Forgotten(KEY, 3, "gone"), ForgottenMeanwhile(KEY)
    facts.emit(earlier)
    facts.subscribe(lambda fact: heard.append(("second", fact)))
    facts.emit(later)
    assert heard == [("first", earlier), ("first", later), ("second", later)]


def test_a_subscriber_hears_the_kinds_that_it_asked_for() -> None:
    heard: list[Fact] = []
    facts = Facts()
    facts.subscribe(heard.append, Forgotten)
    facts.emit(ForgottenMeanwhile(KEY))
    facts.emit(forgotten := Forgotten(KEY, 3, "gone"))
    assert heard == [forgotten]


def test_nobody_needs_to_listen() -> None:
    Facts().emit(ForgottenMeanwhile(KEY))
