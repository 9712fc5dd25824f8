"""Rank what a store found. All stores rank alike, because one pure function does it.

The score is BM25 with what a chat needs beside it. A short message is understood with the ones
around it, and an answer is often next to the words of the question. Long answers and tool results
hold every word, so they give way to what the user said. The words of a question are often spread
over a few messages, so a short message counts what the ones around it have and it lacks. The
constants were chosen on half of LoCoMo's conversations; docs/contributing/recall-quality.md has the
figures.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import log
from typing import NamedTuple

from om_proxy.memory.recall.found import Found, FoundPassage, RankedMessage

SHORT_MESSAGE_WORDS = 60
WEIGHT_BEFORE = 0.4
WEIGHT_BEHIND = 0.1
SIDE_WORD_COUNT = 3.0
BM25_K1 = 1.2
BM25_B = 0.5
# words of a passage; in a chat of shorter ones, length says little
MIN_MEAN_LENGTH = 30.0
LONG_OTHER_ROLE_CUT = 0.7
NEIGHBOUR_WEIGHT = 0.6
NEIGHBOUR_REACH = 5  # messages on either side
MISSING_WORD_WEIGHT = 0.3
VISIT_WEIGHT = 0.5
VISIT_BEST = 3

# of the messages around: how far they are, and how much they count; the nearest first
_STEP_SHARES = [
    (step, 1 - distance / (NEIGHBOUR_REACH + 1))
    for distance in range(1, NEIGHBOUR_REACH + 1)
    for step in (-distance, distance)
]

_Place = tuple[str, int]  # thread, position
_Counts = dict[str, float]
_Beside = tuple[float, list[tuple[str, float]]]  # score, and what each word adds to it


class _Candidate(NamedTuple):
    """A passage with the query's words in it and around it."""

    found: FoundPassage
    counts: Mapping[str, float]


class _Scored(NamedTuple):
    """A passage with its score, and what each word of the query adds to that."""

    found: FoundPassage
    score: float
    word_scores: Mapping[str, float]


def rank(found: Found, words: Sequence[str]) -> list[RankedMessage]:
    """Return the messages that fit the words, the best first; of equals, the newer first."""
    rarity = weigh_words(found, words)
    best: dict[_Place, _Scored] = {}
    candidates = _collect_candidates(found, rarity)
    mean_length = _find_mean_length(candidates)
    for candidate in candidates:
        scored = _score_passage(candidate, rarity, mean_length)
        place = _find_place(candidate.found)
        if scored.score > 0 and (place not in best or scored.score > best[place].score):
            best[place] = scored
    lifted = _lift_visits(best, _lift_neighbours(best))
    rarest_first = sorted(rarity, key=lambda word: -rarity[word])
    ranked = [_build_message(best[place].found, lifted[place], rarest_first) for place in lifted]
    ranked.sort(key=lambda message: (-message.score, -message.at, message.thread, -message.seq))
    return ranked


def weigh_words(found: Found, words: Sequence[str]) -> dict[str, float]:
    """Return the inverse document frequency of each word."""
    weights = {}
    for word in dict.fromkeys(words):
        having = min(found.counts.get(word, 0), found.messages)
        weights[word] = weigh_word(having, found.messages)
    return weights


def weigh_word(having: int, total: int) -> float:
    """Return the inverse document frequency of a word that so many of all have."""
    return log(1 + (total - having + 0.5) / (having + 0.5))


def weigh_length(role: str, length: int, cut: float) -> float:
    """Return the share of its score that a message keeps. A long one that is not the user's loses
    up to `cut`."""
    if role == "user":
        return 1.0
    return 1 - cut * (1 - min(1.0, SHORT_MESSAGE_WORDS / max(length, 1)))


def _collect_candidates(found: Found, rarity: Mapping[str, float]) -> list[_Candidate]:
    passages = (*found.matches, *found.neighbours)
    own = [_count_words(each.passage.words, rarity) for each in passages]
    first = {
        _find_place(each): (each, counts)
        for each, counts in zip(passages, own, strict=True)
        if not each.passage.place
    }
    candidates = []
    for each, counts in zip(passages, own, strict=True):
        total = dict(counts)
        shortness = _is_short(each.passage.length)
        for step, weight in ((-1, WEIGHT_BEFORE), (1, WEIGHT_BEHIND)):
            beside = first.get((each.thread, each.passage.position + step))
            if beside is None or beside[0].passage.visit != each.passage.visit:
                continue
            share = weight * shortness * _is_short(beside[0].passage.length)
            for word, count in beside[1].items():
                total[word] = total.get(word, 0.0) + share * count
        for word in each.passage.side_words:
            if word in rarity:
                total[word] = total.get(word, 0.0) + SIDE_WORD_COUNT
        candidates.append(_Candidate(each, total))
    return candidates


def _find_mean_length(candidates: Sequence[_Candidate]) -> float:
    lengths = [len(candidate.found.passage.words) for candidate in candidates]
    return max(MIN_MEAN_LENGTH, sum(lengths) / (len(lengths) or 1))


def _find_place(found: FoundPassage) -> _Place:
    return found.thread, found.passage.position


def _count_words(words: Sequence[str], wanted: Mapping[str, float]) -> _Counts:
    counts: _Counts = {}
    for word in words:
        if word in wanted:
            counts[word] = counts.get(word, 0.0) + 1.0
    return counts


@lru_cache(maxsize=10_000)
def _is_short(length: int) -> float:
    """Return 1 for a short message, and less the longer it is."""
    return float(min(1.0, SHORT_MESSAGE_WORDS / max(length, 1)) ** 2)


def _score_passage(
    candidate: _Candidate, rarity: Mapping[str, float], mean_length: float
) -> _Scored:
    passage = candidate.found.passage
    damping = BM25_K1 * (1 - BM25_B + BM25_B * len(passage.words) / mean_length)
    factor = (BM25_K1 + 1) * weigh_length(passage.role, passage.length, LONG_OTHER_ROLE_CUT)
    word_scores = {
        word: factor * rarity[word] * count / (count + damping)
        for word, count in candidate.counts.items()
    }
    return _Scored(candidate.found, sum(word_scores.values()), word_scores)


def _lift_neighbours(best: Mapping[_Place, _Scored]) -> dict[_Place, float]:
    """Return the scores with what the messages around add: a share of their scores, and a share of
    what they have of each word beyond the message itself."""
    threads: defaultdict[str, dict[int, _Beside]] = defaultdict(dict)
    for (thread, position), scored in best.items():
        shortness = _is_short(scored.found.passage.length)
        word_scores = [(word, shortness * score) for word, score in scored.word_scores.items()]
        threads[thread][position] = scored.score, word_scores
    lifted = {}
    for (thread, position), scored in best.items():
        of_thread = threads[thread]
        around = missing = 0.0
        nearest = dict(scored.word_scores)
        for step, share in _STEP_SHARES:
            beside = of_thread.get(position + step)
            if beside is None:
                continue
            around += share * beside[0]
            for word, score in beside[1]:
                more = share * score - nearest.get(word, 0.0)
                if more > 0:
                    nearest[word] = share * score
                    missing += more
        lifted[thread, position] = (
            scored.score
            + NEIGHBOUR_WEIGHT * around / NEIGHBOUR_REACH
            + MISSING_WORD_WEIGHT * _is_short(scored.found.passage.length) * missing
        )
    return lifted


def _lift_visits(
    best: Mapping[_Place, _Scored], scores: Mapping[_Place, float]
) -> dict[_Place, float]:
    visits: defaultdict[_Place, list[float]] = defaultdict(list)
    for place, score in scores.items():
        visits[place[0], best[place].found.passage.visit].append(score)
    means = {
        visit: sum(sorted(of_visit, reverse=True)[:VISIT_BEST]) / VISIT_BEST
        for visit, of_visit in visits.items()
    }
    return {
        place: score + VISIT_WEIGHT * means[place[0], best[place].found.passage.visit]
        for place, score in scores.items()
    }


def _build_message(found: FoundPassage, score: float, rarest_first: Sequence[str]) -> RankedMessage:
    thread, passage = found
    has = {*passage.words, *passage.side_words}
    words = tuple([word for word in rarest_first if word in has])
    return RankedMessage(thread, passage.seq, score, passage.place, passage.at, passage.role, words)
