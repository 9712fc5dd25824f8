"""Sentences without a meaning that no two lines share by chance."""

from __future__ import annotations

from random import Random

from tests.agents.corpus.entry import HERE

WORDS = HERE.joinpath("words.txt").read_text(encoding="utf-8").split()


def sentence(rng: Random, words: int) -> str:
    return " ".join(rng.choices(WORDS, k=words))
