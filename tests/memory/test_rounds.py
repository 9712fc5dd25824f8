"""The look-ups that are kept with a reply."""

from __future__ import annotations

import pytest

from om_proxy.memory.rounds import MAX_KEPT_BYTES, LookedUp, Round, keep_rounds


def build_round(name: bytes, result_bytes: int = 100) -> Round:
    return Round(name, (b"x" * result_bytes,))


SMALL_ROUND, OTHER_ROUND = build_round(b"small"), build_round(b"other")
LARGE = build_round(b"large", MAX_KEPT_BYTES - 1000)
TOO_LARGE = build_round(b"", MAX_KEPT_BYTES + 1)
FITTING = build_round(b"", MAX_KEPT_BYTES)


@pytest.mark.parametrize(
    ("rounds", "beside", "kept"),
    [
        ([], None, None),
        ([SMALL_ROUND, OTHER_ROUND], None, LookedUp((SMALL_ROUND, OTHER_ROUND))),
        ([SMALL_ROUND], OTHER_ROUND, LookedUp((SMALL_ROUND,), OTHER_ROUND)),
        ([], OTHER_ROUND, LookedUp((), OTHER_ROUND)),
        ([FITTING], None, LookedUp((FITTING,))),
        ([FITTING], SMALL_ROUND, LookedUp((FITTING,))),
        ([TOO_LARGE], None, None),
        # nothing is kept behind a round that is left out: it would not go on with the cache
        ([SMALL_ROUND, TOO_LARGE, OTHER_ROUND], None, LookedUp((SMALL_ROUND,))),
        ([SMALL_ROUND, LARGE], TOO_LARGE, LookedUp((SMALL_ROUND, LARGE))),
        ([TOO_LARGE], SMALL_ROUND, None),
    ],
)
def test_first_rounds_are_kept(
    rounds: list[Round], beside: Round | None, kept: LookedUp | None
) -> None:
    """A reply's first rounds are kept, whole, up to 16 KiB."""
    assert keep_rounds(rounds, beside) == kept


def test_no_message_stands_in_a_repr() -> None:
    """So a value that gets into a log line or an error tells nothing of a conversation."""
    kept = LookedUp((Round(b"canary", (b"canary",)),), Round(b"canary", (b"canary",)), 7)
    assert "canary" not in f"{kept!r} {kept.rounds} {[kept.beside]}"
    assert repr(kept) == "<LookedUp 1 rounds and one beside, 7t>"
