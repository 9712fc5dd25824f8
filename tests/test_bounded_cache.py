"""What was used last stays, within the bounds."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from om_proxy.bounded_cache import BoundedCache


def filled(cache: BoundedCache[str, int], keys: str, size: int = 0) -> BoundedCache[str, int]:
    for value, key in enumerate(keys):
        cache.put(key, value, size)
    return cache


def test_what_was_used_longest_ago_leaves_first() -> None:
    """To read and to write an entry are uses; to ask whether it is there is none."""
    cache = filled(BoundedCache(max_items=3), "abc")
    assert cache.get("a") == 0
    cache.put("b", 9)
    assert "c" in cache
    cache.put("d", 3)
    assert list(cache) == ["a", "b", "d"]
    assert (cache.get("c"), cache.get("b")) == (None, 9)


def test_bytes_are_bounded() -> None:
    """As many leave as must, and the size of a value that was replaced no longer counts."""
    cache = filled(BoundedCache(max_bytes=100), "abcd", size=25)
    cache.put("d", 4, 30)
    assert (list(cache), cache.held_bytes) == (["b", "c", "d"], 80)
    cache.put("e", 5, 70)
    assert (list(cache), cache.held_bytes) == (["d", "e"], 100)


def test_both_bounds_hold() -> None:
    """Whichever is met first."""
    cache: BoundedCache[str, int] = BoundedCache(max_items=2, max_bytes=100)
    assert list(filled(cache, "abc", size=1)) == ["b", "c"]
    cache.put("d", 4, 100)
    assert list(cache) == ["d"]


@pytest.mark.parametrize(("min_items", "held"), [(0, []), (1, ["b"]), (2, ["a", "b"])])
def test_what_is_larger_than_the_whole(min_items: int, held: list[str]) -> None:
    """It stays only where the newest have to."""
    cache: BoundedCache[str, int] = BoundedCache(max_bytes=100, min_items=min_items)
    filled(cache, "ab", size=101)
    assert (list(cache), cache.held_bytes) == (held, 101 * len(held))


def test_what_is_taken_out() -> None:
    """Its bytes no longer count; what is not there is None."""
    cache = filled(BoundedCache(max_bytes=100), "ab", size=10)
    assert (cache.pop("a"), cache.pop("a"), cache.get("a")) == (0, None, None)
    assert (len(cache), cache.held_bytes) == (1, 10)


def test_it_tells_what_leaves_for_want_of_room() -> None:
    """Once it has left; not what was taken out or replaced."""
    told: list[tuple[str, int, bool]] = []
    cache: BoundedCache[str, int] = BoundedCache(
        max_items=2, on_evict=lambda key, value: told.append((key, value, key in cache))
    )
    filled(cache, "ab")
    cache.put("a", 7)
    cache.pop("b")
    filled(cache, "cd")
    assert told == [("a", 7, False)]


def play_list(limits: tuple[int, int, int]) -> Callable[[Random], tuple[list[str], int]]:
    """The same by a list that is searched from its start."""
    max_items, max_bytes, min_items = limits

    def play(rng: Random) -> tuple[list[str], int]:
        held: list[tuple[str, int]] = []
        for key, size, is_put in plays(rng):
            found = next((entry for entry in held if entry[0] == key), None)
            if found:
                held.remove(found)
            if is_put:
                held.append((key, size))
            elif found:
                held.append(found)
            while len(held) > max_items or (
                sum(size for _, size in held) > max_bytes and len(held) > min_items
            ):
                del held[0]
        return [key for key, _ in held], sum(size for _, size in held)

    return play


def plays(rng: Random) -> list[tuple[str, int, bool]]:
    return [(rng.choice("abcdefgh"), rng.randrange(40), rng.random() < 0.6) for _ in range(200)]


@pytest.mark.parametrize("limits", [(3, 1_000, 0), (9, 60, 0), (9, 30, 1), (4, 60, 2)])
@pytest.mark.parametrize("seed", range(5))
def test_many_uses(limits: tuple[int, int, int], seed: int) -> None:
    """Puts and reads in any order leave what a list would, and the sum of its bytes."""
    max_items, max_bytes, min_items = limits
    cache: BoundedCache[str, int] = BoundedCache(
        max_items=max_items, max_bytes=max_bytes, min_items=min_items
    )
    for key, size, is_put in plays(Random(seed)):
        if is_put:
            cache.put(key, 0, size)
        else:
            cache.get(key)
    assert (list(cache), cache.held_bytes) == play_list(limits)(Random(seed))
