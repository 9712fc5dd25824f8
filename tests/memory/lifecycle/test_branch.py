"""The log goes back with a fork behind its coverage."""

from msgspec.structs import replace

from om_proxy.memory.lifecycle import branch, transitions
from om_proxy.memory.model import replace_log
from tests.memory.building import chunked, reflection


def test_a_fork_behind_coverage_finds_the_newest_state_before_it() -> None:
    """Entries after the fork are dropped; a reflection that swallowed them gives way to the
    generation before it."""
    made = chunked(8, 1_000, 4, 8, 12)
    active = transitions.activate_chunks(made, [c.id for c in made.chunks], 1.0)
    older, live = active.log.entries, {m.seq: m.chain for m in made.tail}
    reflected = transitions.swap_reflection(
        transitions.keep_reflection(active, reflection(active, 10)), 2.0
    )
    assert branch.find_rollback_target(active, 9, (), live)[0] == older[:2]
    assert branch.find_rollback_target(reflected, 9, [(0, older)], live)[0] == older[:2]
    assert (
        branch.find_rollback_target(reflected, 12, [(0, older)], live)[0] == reflected.log.entries
    )
    assert branch.find_rollback_target(reflected, 9, (), live)[0] == ()


def test_a_log_of_an_abandoned_branch_is_no_state_to_fall_back_to() -> None:
    """An older generation may cover seqs below the fork that belonged to another branch: the chain
    tells."""
    made = chunked(8, 1_000, 4, 8)
    active = transitions.activate_chunks(made, [c.id for c in made.chunks], 1.0)
    abandoned = tuple(replace(o, chain=b"another branch".ljust(16)) for o in active.log.entries)
    live = {m.seq: m.chain for m in made.tail}
    assert branch.find_rollback_target(active, 9, [(0, abandoned)], live)[0] == active.log.entries
    assert (
        branch.find_rollback_target(replace_log(active, entries=()), 9, [(0, abandoned)], live)[0]
        == ()
    )


def test_a_pending_reflection_survives_a_fork_behind_its_range() -> None:
    """It is dropped exactly when its range reaches the fork."""
    made = chunked(8, 1_000, 4, 8, 12)
    active = transitions.activate_chunks(made, [c.id for c in made.chunks], 1.0)
    pending = transitions.keep_reflection(active, reflection(active, 10, entries=1))
    live = {m.seq: m.chain for m in made.tail}
    for cut, kept in ((6, True), (3, False)):
        log, _ = branch.find_rollback_target(pending, cut, (), live)
        count = branch.find_coverage(pending, log)
        rolled = branch.roll_back(
            pending, cut, log, made.marks[:count], made.tail[count:], (count, 1_000 * count), 5.0
        )
        assert (rolled.log.reflection is not None) is kept


def test_rolling_back_uncovers_what_the_fork_took_back() -> None:
    """The messages of the dropped entries are raw again, under a new generation. Nothing is left of
    the abandoned branch."""
    whole = chunked(8, 1_000, 4, 8)
    active = transitions.activate_chunks(whole, [c.id for c in whole.chunks], 1.0)
    log, _ = branch.find_rollback_target(active, 6, (), {m.seq: m.chain for m in whole.tail})
    back = branch.roll_back(active, 6, log, whole.marks[:4], whole.tail[4:], (4, 4_000), 5.0)
    assert (back.coverage, back.covered_count, back.covered_tokens, back.log.generation) == (
        4,
        4,
        4_000,
        1,
    )
    assert [m.seq for m in back.tail] == list(range(5, 17))
    assert back.chain_at_coverage == whole.tail[3].chain
