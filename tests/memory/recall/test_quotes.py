"""Which conversations kept look-ups quote."""

from __future__ import annotations

import pytest

from om_proxy.memory.recall.quotes import list_named_labels, quotes_thread
from om_proxy.memory.rounds import LookedUp, Round

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
