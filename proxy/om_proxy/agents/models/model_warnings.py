"""Warn about models that cost too much, are too small, or are no longer served."""

from __future__ import annotations

from datetime import date, timedelta

from om_proxy.agents.models.price_list import find_abilities, find_deprecation_date, find_price
from om_proxy.agents.models.small_models import read_today

# dollars an input token: the price of GPT-4o, which is known to be too expensive for this work
EXPENSIVE_INPUT_PRICE = 2.5e-6
# a reflector's window must be this many times `reflect_from_tokens`: its prompt, the log above the
# threshold and an answer must fit too
REFLECTOR_WINDOW_FACTOR = 1.5
# long enough ahead to choose another model in the next release of a configuration
DEPRECATION_NOTICE = timedelta(days=60)


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
