"""Results of forgetting add up."""

from __future__ import annotations

from itertools import pairwise

from om_proxy.storage.values.records import ForgetResult


def test_results_add_up() -> None:
    one = ForgetResult(1, 2, 3, 4, 5, events=6)
    other = ForgetResult(10, 20, 30, 40, 50, "pending", "gone", 60)
    total = one.add(other)
    assert total == (11, 22, 33, 44, 55, "pending", "gone", 66, "not_covered")
    assert one.add(one).database == "gone"
    assert total.add(ForgetResult(log="pending")).log == "pending"
    assert list(total.counts.values()) == [11, 22, 33, 44, 55, 66]


def test_copies_are_covered_only_if_those_of_all_parts_are() -> None:
    """Where nothing was removed, there is nothing in a copy either."""
    shredded = ForgetResult(1, backups="keys_destroyed")
    assert ForgetResult().add(shredded).add(ForgetResult()).backups == "keys_destroyed"
    assert shredded.add(ForgetResult(1)).backups == "not_covered"


def test_the_worst_state_of_bytes_stays() -> None:
    states = ("gone", "keys_destroyed", "pending", "until_rewrite", "not_covered")
    for better, worse in pairwise(states):
        for pair in ((better, worse), (worse, better)):
            one, other = (ForgetResult(1, database=state, log=state) for state in pair)
            assert one.add(other)[5:7] == (worse, worse)


def test_what_waits_cannot_be_decrypted_once_its_keys_are_destroyed() -> None:
    waiting = ForgetResult(1, database="pending", log="pending", backups="pending")
    assert waiting.settle_keys(is_destroyed=False) == waiting
    settled = waiting.settle_keys(is_destroyed=True)
    assert (settled.database, settled.log, settled.backups) == ("keys_destroyed",) * 3
    erased = ForgetResult(1, backups="pending").settle_keys(is_destroyed=True)
    assert (erased.database, erased.log, erased.backups) == ("gone", "gone", "keys_destroyed")
    # some of it was not encrypted
    plain = waiting.add(ForgetResult(1))
    assert plain.settle_keys(is_destroyed=True) == plain
    assert plain.backups == "not_covered"
