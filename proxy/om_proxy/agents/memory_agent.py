"""The base of observer and reflector."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random, SystemRandom

from om_proxy.agents.model_access.llm import LLM, Abilities
from om_proxy.agents.model_access.model_limits import unknown_abilities
from om_proxy.agents.model_access.retries import ModelCaller


class MemoryAgent:
    """The part of an agent that asks models, counts tokens and knows a model's abilities.

    `tokens` counts the tokens of a text. It runs in a thread: its first call loads ranks, and long
    texts take time."""

    def __init__(
        self,
        llm: LLM,
        *,
        tokens: Callable[[str], int],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        rng: Random = SystemRandom(),  # noqa: B008 - stateless
        abilities: Callable[[str], Abilities] = unknown_abilities,
    ) -> None:
        self._tokens = tokens
        self._caller = ModelCaller(llm, tokens=tokens, sleep=sleep, rng=rng)
        self._abilities = abilities
