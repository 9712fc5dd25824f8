"""Simulated clients against the oracle: after every request the live transcript is the true
conversation."""

from __future__ import annotations

import os

import pytest

from tests.memory.clients import KINDS, converse
from tests.support.long_forms import IS_LONG

# per kind of client
SEED_COUNT = int(os.environ.get("OM_SIMULATION_SEEDS", "24" if IS_LONG else "5"))
# one of them walks all cases as a rule
LOOKED_AT_SEEDS = 8 if IS_LONG else 3
FIRST_SEED = int(os.environ.get("OM_SIMULATION_FIRST_SEED", "0"))
TURNS = 30


@pytest.mark.parametrize("kind", KINDS)
def test_the_transcript_stays_the_truth(kind: str) -> None:
    """Nothing is lost, doubled or reordered, and every tail is sound, whatever the client does
    within the known limits.

    Every other thread keeps only five marks before coverage, so that the slow path is walked as
    often as the fast one.
    """
    for seed in range(FIRST_SEED, FIRST_SEED + SEED_COUNT):
        converse(kind, seed, TURNS, recent=5 if seed % 2 else 256)


def test_the_simulation_walks_the_cases() -> None:
    """A simulation that never met a case proves nothing about it."""
    cases = {
        case
        for kind in KINDS
        for seed in range(LOOKED_AT_SEEDS)
        for case in converse(kind, seed, TURNS).thread.cases
    }
    assert cases >= {
        "first", "extend", "retry", "regenerate", "rewind", "edit", "trimmed", "trimmed_edit", "delta", "compacted",
        "altered_reply", "stubbed", "folded", "ephemeral", "switch",
    }  # fmt: skip
