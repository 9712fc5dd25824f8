"""Facts reach every subscriber, once, before the emitter goes on."""

from __future__ import annotations

from om_proxy.memory.model import Key
from om_proxy.observability.facts import ExtraFailed, Fact, Facts, Forgotten, ForgottenMeanwhile

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


async def test_an_extra_that_fails_gives_its_fallback() -> None:
    heard: list[Fact] = []
    facts = Facts(heard.append)
    place = {"a": 1}

    async def find_later() -> int:
        return place["c"]

    assert facts.try_extra("due", KEY, 7, lambda: place["a"]) == 1
    assert facts.try_extra("due", KEY, 7, lambda: place["b"]) == 7
    assert await facts.await_extra("held", None, 7, find_later) == 7
    said = [(f.key, f.extra, f.error) for f in heard if isinstance(f, ExtraFailed)]
    assert said == [(KEY, "due", "KeyError"), (None, "held", "KeyError")]


def test_a_subscriber_that_fails_costs_only_itself() -> None:
    """The others hear the fact, and that one of them failed."""
    heard: list[Fact] = []

    def fail(fact: Fact) -> None:
        raise RuntimeError(fact)

    facts = Facts(fail, heard.append)
    facts.emit(told := Forgotten(KEY, 3, "gone"))
    first, second = heard
    assert isinstance(first, ExtraFailed)
    assert (first.extra, first.error, second) == ("facts", "RuntimeError", told)
