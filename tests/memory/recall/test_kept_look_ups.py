"""Which kept look-ups a prompt shows."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from om_proxy.memory.model import Memory
from om_proxy.memory.recall.kept_look_ups import (
    MAX_SHOWN_TOKENS,
    choose_shown_look_ups,
    drop_left_look_ups,
    list_named_labels,
    quotes_thread,
)
from om_proxy.memory.rounds import LookedUp, Round
from tests.memory.building import KEY, message

NOW, EARLIER = (1, 2), (1, 1)  # generation and length of the log


def build(turns: str, after: int = 0, tokens: int = 100) -> Memory:
    """A memory whose tail has a message for each letter, from seq 11 on: `u` user, `s` system, `a`
    assistant, `A` assistant with look-ups, `c` an assistant's call, `C` one with look-ups, `t` a
    result."""
    roles = {"u": "user", "s": "system", "t": "tool"}
    tail = []
    for seq, turn in enumerate(turns, 11):
        one = message(seq, b"", roles.get(turn, "assistant"), 10)
        if turn == "t":
            one = replace(one, item=replace(one.item, answers="call"))
        if turn in "AC":
            one = replace(one, look_ups=LookedUp((Round(b"", (b"",)),), tokens=tokens))
        tail.append(one)
    return Memory(
        key=KEY,
        next_seq=99,
        coverage=10,
        tail=tuple(tail),
        look_ups_after=after,
        look_ups_log_state=EARLIER,
    )


@dataclass(frozen=True)
class Case:
    turns: str
    between: list[int]  # messages whose look-ups are shown while the notes stay the same
    changed: list[int]  # and in the first prompt with other notes
    after: int = 0
    tokens: int = 100


@pytest.mark.parametrize(
    "case",
    [
        Case("uau", [], []),
        Case("uAu", [12], []),
        Case("uAuAu", [12, 14], []),
        Case("uAuAu", [14], [], after=13),  # the first one has left before
        # a tool loop goes on with its look-ups, and with those of no turn before it
        Case("uCt", [12], [12]),
        Case("uAuCtCt", [12, 14, 16], [14, 16]),
        Case("Ct", [11], [11]),  # the notes cover its beginning
        Case("uCtCt", [14], [14], after=13),
        Case("uCtA", [12, 14], []),  # it has ended
        Case("uCtsCt", [12, 15], [15]),
        # as many as fit, the older ones first
        Case("uAuAuAu", [12, 14], [], tokens=MAX_SHOWN_TOKENS // 2),
        Case("uAu", [12], [], tokens=MAX_SHOWN_TOKENS),
        Case("uAu", [], [], tokens=MAX_SHOWN_TOKENS + 1),
    ],
    ids=lambda case: f"{case.turns} {case.after} {case.tokens}",
)
def test_look_ups_of_a_prompt(case: Case) -> None:
    """They stay until the notes change; only a running tool loop keeps them."""
    memory = build(case.turns, case.after, case.tokens)
    same = drop_left_look_ups(memory, EARLIER)
    assert same is memory
    assert list(choose_shown_look_ups(same)) == case.between
    changed = drop_left_look_ups(memory, NOW)
    assert list(choose_shown_look_ups(changed)) == case.changed
    # the next prompt with the same notes shows the same, and never those that have left
    later = replace(changed, tail=(*changed.tail, *build("u" * 9).tail[len(changed.tail) :]))
    assert list(choose_shown_look_ups(drop_left_look_ups(later, NOW))) == case.changed


def test_a_smaller_one_fits_behind_one_that_does_not() -> None:
    """What is shown depends on older look-ups alone: so each prompt is the beginning of the next."""
    memory = build("uAuAuAu", tokens=MAX_SHOWN_TOKENS // 2 + 1)
    last = memory.tail[5]
    small = replace(last, look_ups=LookedUp(last.look_ups.rounds if last.look_ups else (), None, 9))
    memory = replace(memory, tail=(*memory.tail[:5], small, memory.tail[6]))
    assert list(choose_shown_look_ups(memory)) == [12, 16]


LABEL = "3f9c2a77d0a1b2c3"
OTHERS_QUOTED = b'{"role":"tool","content":"[3f9c2a77.m40] user, May 8, 2023\\n  Rome"}'
OTHERS_LISTED = b'{"role":"tool","content":"- \\"Rome\\" [3f9c2a77], 812 messages"}'
OWN_QUOTED = b'{"role":"tool","content":"[m118] user, May 8, 2023\\n  Oslo"}'
CALL = b'{"role":"assistant","tool_calls":[]}'


@pytest.mark.parametrize(
    ("look_ups", "is_quoting"),
    [
        (LookedUp((Round(CALL, (OTHERS_QUOTED,)),)), True),
        (LookedUp((Round(CALL, (OTHERS_LISTED,)),)), True),
        (LookedUp((Round(CALL, (OWN_QUOTED,)), Round(CALL, (OWN_QUOTED, OTHERS_QUOTED)))), True),
        (LookedUp((), Round(CALL, (OTHERS_QUOTED,))), True),
        (LookedUp((Round(CALL, (OWN_QUOTED,)),)), False),
        # longer runs of digits are no labels as an answer shows them
        (LookedUp((Round(CALL, (b'"' + LABEL.encode() + b'"',)),)), False),
        (LookedUp((Round(CALL, (b'"[3f9c2a78.m40]"',)),)), False),
        # what the model asked for is no quote: an answer tells whose words it has
        (LookedUp((Round(OTHERS_QUOTED, (OWN_QUOTED,)),)), False),
        (LookedUp(), False),
    ],
)
def test_look_ups_quote_the_threads_that_their_answers_name(
    look_ups: LookedUp, is_quoting: bool
) -> None:
    assert quotes_thread(look_ups, LABEL) is is_quoting


def test_every_named_thread_is_listed() -> None:
    both = OTHERS_QUOTED + b'"[0123abcd.m1]"'
    assert list_named_labels(LookedUp((Round(CALL, (both,)),))) == {"3f9c2a77", "0123abcd"}
