"""What experience says of models: who observes badly, and what costs too much."""

from __future__ import annotations

import re

from om_proxy.catalogue.models import limits, prices

DEAR = 2.5e-6  # dollars per input token: GPT-4o's, the model known to be too dear for this work
ROOM = 1.5  # a reflector's window against R: its prompt, the log beyond R, and an answer must fit as well

_OBSERVES_BADLY = re.compile(r"claude.*4[.-]5(?!\d)")  # the reference implementation's experience


def warnings(model: str, *, reflect_at: int | None = None) -> tuple[str, ...]:
    """What an operator should know before this model observes or, with `reflect_at` (R, in tokens), reflects."""
    found = []
    if _OBSERVES_BADLY.search(model.lower()):
        found.append(f"{model} is known to observe and reflect badly; `memory.model: default` is a tested choice")
    price = prices(model)
    if price and price.input >= DEAR:
        dollars = price.input * 1e6
        found.append(
            f"{model} is dear for background work (${dollars:g} per million input tokens); a small model does as well"
        )
    window = limits(model).max_input
    if reflect_at and window and window < reflect_at * ROOM:
        found.append(
            f"{model} takes {window} tokens, too few to reflect on {reflect_at}; lower reflection.observation_tokens, "
            "or choose a model with a larger window"
        )
    return tuple(found)
