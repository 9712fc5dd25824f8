"""List the small models that make notes for `memory.model: auto` and `default`, and warn about
models that cost too much, are too small, or are no longer served.

A provider's model servers are named by host: nothing is sent to a server that the caller does not
use. Of each list the first model counts that its provider still serves, by the price list's
`deprecation_date`. `tests/test_small_models.py` fails 60 days before no model of a list is left.

Tested: `gpt-5-mini` and `claude-haiku-4-5` by the reference implementation, as of November 2026. The
others follow a tested model of their family at its price, or in its size; they are here by their
name, and a server that refuses one costs nothing but the refused call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from urllib.parse import urlsplit

from om_proxy.agents.models.price_list import find_abilities, find_deprecation_date, find_price

_OPENAI = ("gpt-5-mini", "gpt-5.4-nano")
_ANTHROPIC = ("claude-haiku-4-5", "claude-haiku-5-5")
_GEMINI = ("gemini-3.5-flash-lite", "gemini-3.1-flash-lite")
_DEEPSEEK = ("deepseek-v4-flash",)

SMALL_MODELS_BY_HOST = {
    "api.openai.com": _OPENAI,
    "api.anthropic.com": _ANTHROPIC,
    "generativelanguage.googleapis.com": _GEMINI,
    "api.deepseek.com": _DEEPSEEK,
}
# A router names a model by its maker. Only a model of the same maker takes its place, and only where
# the maker itself serves the actor. Open models (`gpt-oss`, `gemma`, all of DeepSeek's) and free ones
# are served by others: their words must not go to the maker, nor a bill to the caller.
ROUTER_HOSTS = frozenset({"openrouter.ai"})
SMALL_MODELS_BY_MAKER = {
    "openai": _OPENAI,
    # the router writes the version with a dot
    "anthropic": ("claude-haiku-4.5", "claude-haiku-5.5"),
    "google": _GEMINI,
}
HOSTED_NAMES_BY_MAKER = {
    "openai": re.compile(r"gpt-\d|codex-|o\d"),
    "anthropic": re.compile("claude-"),
    "google": re.compile("gemini-"),
}
FREE_VARIANT = "free"  # `openai/gpt-oss-120b:free`
# `memory.model: default`, with a key of the provider's own
DEFAULT_MODELS = tuple(f"gemini/{name}" for name in _GEMINI)
# dollars an input token: the price of GPT-4o, which is known to be too expensive for this work
EXPENSIVE_INPUT_PRICE = 2.5e-6
# a reflector's window must be this many times `reflect_from_tokens`: its prompt, the log above the
# threshold and an answer must fit too
REFLECTOR_WINDOW_FACTOR = 1.5
# long enough ahead to choose another model in the next release of a configuration
DEPRECATION_NOTICE = timedelta(days=60)


def find_small_model(actor: str, base_url: str | None, today: date | None = None) -> str | None:
    """Return the small model that takes notes for this actor on the same server. Return None if none
    is known, or if the actor costs no more."""
    return _find_small_model(actor, base_url or "", today or read_today())


def choose_default_model(today: date | None = None) -> str:
    """Return the model that `memory.model: default` names."""
    return _choose_served(DEFAULT_MODELS, today or read_today()) or DEFAULT_MODELS[0]


def read_today() -> date:
    return datetime.now(UTC).date()


# pure but for the price table, which does not change; a turn may ask for it
@lru_cache(maxsize=1024)
def _find_small_model(actor: str, base_url: str, today: date) -> str | None:
    host = urlsplit(base_url).hostname or ""
    if host in ROUTER_HOSTS:
        actor, _, variant = actor.partition(":")
        names = () if variant == FREE_VARIANT else _list_small_models_on_router(actor)
    else:
        names = SMALL_MODELS_BY_HOST.get(host, ())
    small = _choose_served(names, today)
    return None if small is None or _costs_no_more(actor, small, base_url) else small


def _list_small_models_on_router(actor: str) -> tuple[str, ...]:
    maker, _, name = actor.partition("/")
    hosted_names = HOSTED_NAMES_BY_MAKER.get(maker)
    if hosted_names is None or not hosted_names.match(name):
        return ()
    return tuple(f"{maker}/{small}" for small in SMALL_MODELS_BY_MAKER[maker])


def _choose_served(names: Iterable[str], today: date) -> str | None:
    """Return the first model that is not past its deprecation date."""
    for name in names:
        deprecated = find_deprecation_date(name)
        if deprecated is None or today < deprecated:
            return name
    return None


def _costs_no_more(actor: str, small: str, base_url: str) -> bool:
    """Return whether the actor is as cheap as the small model, or is that model."""
    actor_price, small_price = find_price(actor, base_url), find_price(small, base_url)
    if actor_price is None or small_price is None:
        return actor == small
    return actor_price.input <= small_price.input


def list_model_warnings(
    model: str,
    *,
    reflect_from_tokens: int | None = None,
    is_replaced: bool = False,
    today: date | None = None,
) -> tuple[str, ...]:
    """List what an operator should know before this model observes. With `reflect_from_tokens`, the
    model also reflects, from that threshold on. `is_replaced`: another takes its place once it has
    ended."""
    warnings = []
    today = today or read_today()
    deprecated = find_deprecation_date(model)
    if deprecated and not is_replaced and today + DEPRECATION_NOTICE >= deprecated:
        words = "its provider ends" if today < deprecated else "its provider has ended"
        warnings.append(
            f"{model}: {words} it on {deprecated} by the price list; choose another memory model"
        )
    price = find_price(model)
    if price and price.input >= EXPENSIVE_INPUT_PRICE:
        dollars = price.input * 1e6
        warnings.append(
            f"{model} is expensive for background work (${dollars:g} per million input tokens); a small model costs less"
        )
    window = find_abilities(model).max_input
    if reflect_from_tokens and window and window < reflect_from_tokens * REFLECTOR_WINDOW_FACTOR:
        warnings.append(
            f"{model} takes {window} tokens, too few to reflect on {reflect_from_tokens}; lower reflection.observation_tokens, "
            "or choose a model with a larger window"
        )
    return tuple(warnings)
