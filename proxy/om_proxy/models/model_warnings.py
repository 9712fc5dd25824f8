"""Warn about models that are known to observe badly, or to cost too much."""

from __future__ import annotations

import re

from om_proxy.models.price_list import find_abilities, find_price

# dollars an input token: the price of GPT-4o, which is known to be too expensive for this work
EXPENSIVE_INPUT_PRICE = 2.5e-6
# a reflector's window must be this many times `reflect_from_tokens`: its prompt, the log above the
# threshold and an answer must fit too
REFLECTOR_WINDOW_FACTOR = 1.5

_POOR_OBSERVERS = re.compile(r"claude.*4[.-]5(?!\d)")  # the reference implementation's experience


def list_model_warnings(model: str, *, reflect_from_tokens: int | None = None) -> tuple[str, ...]:
    """List what an operator should know before this model observes. With `reflect_from_tokens`, the
    model also reflects, from that threshold on."""
    warnings = []
    if _POOR_OBSERVERS.search(model.lower()):
        warnings.append(
            f"{model} is known to observe and reflect badly; `memory.model: default` is a tested choice"
        )
    price = find_price(model)
    if price and price.input >= EXPENSIVE_INPUT_PRICE:
        dollars = price.input * 1e6
        warnings.append(
            f"{model} is expensive for background work (${dollars:g} per million input tokens); a small model is good enough"
        )
    window = find_abilities(model).max_input
    if reflect_from_tokens and window and window < reflect_from_tokens * REFLECTOR_WINDOW_FACTOR:
        warnings.append(
            f"{model} takes {window} tokens, too few to reflect on {reflect_from_tokens}; lower reflection.observation_tokens, "
            "or choose a model with a larger window"
        )
    return tuple(warnings)
