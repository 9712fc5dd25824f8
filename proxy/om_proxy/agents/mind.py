"""What both background minds are made of: a way to ask models, a way to count, and what is known of a model's abilities."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random, SystemRandom

from om_proxy.agents.asking import Asker
from om_proxy.agents.fitting import nothing_known
from om_proxy.agents.llm import LLM, Abilities


class Mind:
    """`tokens` counts tokens. It may load for a while at its first use, and much text takes a while: it is called in a thread."""

    def __init__(
        self,
        llm: LLM,
        *,
        tokens: Callable[[str], int],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        rng: Random = SystemRandom(),  # noqa: B008 - stateless
        abilities: Callable[[str], Abilities] = nothing_known,
    ) -> None:
        self._tokens = tokens
        self._asker = Asker(llm, tokens=tokens, sleep=sleep, rng=rng)
        self._abilities = abilities
