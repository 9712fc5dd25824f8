"""Recently used entries stay, within the bounds."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from om_proxy.common.bounded_cache import BoundedCache


def fill_cache(cache: BoundedCache[str, int], keys: str, size: int = 0) -> BoundedCache[str, int]:
    for value, key in enumerate(keys):
        cache.put(key, value, size)
    return cache


def test_the_least_recently_used_entry_is_evicted() -> None:
    """Reading and writing an entry are uses; asking whether it is cached is not."""
    cache = fill_cache(BoundedCache(max_items=3), "abc")
    assert cache.get("a") == 0
    cache.put("b", 9)
    assert "c" in cache
    cache.put("d", 3)
    assert list(cache) == ["a", "b", "d"]
    assert (cache.get("c"), cache.get("b")) == (None, 9)


def test_bytes_are_bounded() -> None:
    """As many entries are evicted as needed; the size of a replaced value no longer counts."""
    cache = fill_cache(BoundedCache(max_bytes=100), "abcd", size=25)
    cache.put("d", 4, 30)
    assert (list(cache), cache.held_bytes) == (["b", "c", "d"], 80)
    cache.put("e", 5, 70)
    assert (list(cache), cache.held_bytes) == (["d", "e"], 100)


def test_both_bounds_hold() -> None:
    """The bound that is exceeded first evicts."""
    cache: BoundedCache[str, int] = BoundedCache(max_items=2, max_bytes=100)
    assert list(fill_cache(cache, "abc", size=1)) == ["b", "c"]
    cache.put("d", 4, 100)
    assert list(cache) == ["d"]


@pytest.mark.parametrize(("min_items", "held"), [(0, []), (1, ["b"]), (2, ["a", "b"])])
def test_a_value_larger_than_the_cache(min_items: int, held: list[str]) -> None:
    """A value larger than the cache stays only within `min_items`."""
    cache: BoundedCache[str, int] = BoundedCache(max_bytes=100, min_items=min_items)
    fill_cache(cache, "ab", size=101)
    assert (list(cache), cache.held_bytes) == (held, 101 * len(held))


def test_pop() -> None:
    """A removed entry's bytes no longer count; a missing key gives None."""
    cache = fill_cache(BoundedCache(max_bytes=100), "ab", size=10)
    assert (cache.pop("a"), cache.pop("a"), cache.get("a")) == (0, None, None)
    assert (len(cache), cache.held_bytes) == (1, 10)


def test_on_evict() -> None:
    """`on_evict` is called after an eviction, not for removed or replaced entries."""
    told: list[tuple[str, int, bool]] = []
    cache: BoundedCache[str, int] = BoundedCache(
        max_items=2, on_evict=lambda key, value: told.append((key, value, key in cache))
    )
    fill_cache(cache, "ab")
    cache.put("a", 7)
    cache.pop("b")
    fill_cache(cache, "cd")
    assert told == [("a", 7, False)]


def play_list(limits: tuple[int, int, int]) -> Callable[[Random], tuple[list[str], int]]:
    """The same cache as a plain list, for comparison."""
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
    """After any puts and reads, the cache has the entries and bytes of the list."""
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


def test_a_cleared_cache_is_empty() -> None:
    evicted: list[str] = []
    cache: BoundedCache[str, int] = BoundedCache(
        max_bytes=9, on_evict=lambda key, _: evicted.append(key)
    )
    cache.put("a", 1, 5)
    cache.clear()
    assert (len(cache), cache.held_bytes, cache.get("a")) == (0, 0, None)
    cache.put("b", 1, 9)
    assert (list(cache), evicted) == (["b"], [])


def test_a_loop_may_use_the_cache() -> None:
    """It goes over the entries as they were when it began."""
    cache: BoundedCache[str, int] = BoundedCache(max_items=3)
    for key in "abc":
        cache.put(key, 1)
    assert [cache.get(key) for key in cache] == [1, 1, 1]
    for key, value in cache.items():
        cache.put(key + "+", value)
    assert list(cache) == ["a+", "b+", "c+"]
