"""What a seed makes of a world: its settings, who lives there, and what goes wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from om_proxy.settings.config import Settings, parse

SETTINGS = """
upstream: [{{name: actor, match: ["*"], base_url: "http://actor/v1", layout: {layout}}}]
memory:
  {model}
  share_token_budget: {share}
  activate_after_idle: {idle}
  activate_on_provider_change: {provider}
  observation: {{message_tokens: {tokens}, buffer_tokens: {buffer}, buffer_activation: {activation},
    block_after: {block}, block_timeout: 5s}}
  reflection: {{observation_tokens: {reflect}}}
background: {{observer_interval: 60s}}
"""


@cache
def settings_of(text: str) -> Settings:
    return parse(text)


@dataclass(frozen=True, slots=True)
class Plan:
    """What of all that may go wrong does in this world."""

    settings: str
    engines: int
    kinds: tuple[tuple[str, ...], ...]  # of the clients, by thread
    moves: int
    minds: float  # share of troubled model calls
    crashes: float  # chance at every await of a store
    faults: bool  # whether the disk breaks now and then
    hang_ups: float  # chance of each request
    cache_bytes: int = 2**20
    recent: int = 256  # marks loaded before coverage
    people: int = 0  # who change notes meanwhile
    acts: int = 0  # of each

    @classmethod
    def of(cls, rng: Random) -> Plan:
        pick = rng.choice
        # of their own, so that a seed plans the same world with people as without
        lots = Random(str(rng.getstate()[1][:4]))
        kinds = tuple(pick(KINDS) for _ in range(pick((1, 1, 2))))
        brittle = any(kind in BRITTLE for talk in kinds for kind in talk)
        buffer = pick((0.2, 0.2, 0.34, 0.5, "false"))
        settings = SETTINGS.format(
            layout=pick(("blocks", "merged")),
            model=pick(
                ("model: inherit", *['model: openai/memory\n  api_base: "http://memory/v1"'] * 4)
            ),
            share=pick(("false", "false", "false", "true")),
            idle=pick(("off", "off", "100s")),
            provider=pick(("false", "false", "true")),
            tokens=pick((400, 700, 1200)),
            buffer=buffer,
            activation=pick((0.8, 0.8, 0.5, 1)),
            block=pick((1.2, 1.2, 1.0, 2)),
            reflect=pick((150, 300, 600)),
        )
        return cls(
            settings=settings,
            engines=pick((1, 1, 2, 3)),
            kinds=kinds,
            moves=pick((8, 14, 22)),
            minds=pick((0.0, 0.3, 1.0)),
            crashes=pick((0.0, 0.0, 0.002, 0.01)),
            faults=not brittle and pick((False, False, True)),
            hang_ups=pick((0.0, 0.05, 0.15)),
            cache_bytes=pick((1, 2**20, 2**20)),
            recent=pick((40 if brittle else 5, 256)),  # a window reaches no further than this
            people=lots.choice((0, 1, 2)),
            acts=lots.choice((10, 20, 40)),
        )


CLIENTS: Mapping[str, Mapping[str, Any]] = {
    "whole": {},
    "full": {"history": "full"},
    "window": {"window": 9},
    "thin": {"thin": True},
    "new": {"thin": True, "history": "new"},
}
KINDS = (
    ("whole",),
    ("whole",),
    ("whole",),
    ("full",),
    ("window",),
    ("thin",),
    ("new",),
    ("new", "new"),
)
BRITTLE = (
    "window",
    "thin",
    "new",
)  # what these sent once they do not send again: a broken disk loses it
