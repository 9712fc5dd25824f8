"""Find where a conversation may be cut: a tool call stays with its results.

A *block* is a message that makes tool calls and all their results; every other message is a block
of its own. The rules (docs/contributing/behaviour.md#safe-cut):

- Parallel calls stay together, also when a client spreads them over several assistant messages.
- A result belongs to the newest earlier message that makes a call of that id: some servers number
  their calls anew each turn.
- A block whose results never come closes when a message that is no result follows. Real sessions
  have such calls.
- A block that still waits for results at the end of the list has no closed end yet.
- A result without a call is a message of its own: the client sent it so.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from om_proxy.memory.model import MESSAGE_FRAMING_TOKENS, Mark


def find_closed_ends(messages: Sequence[Mark]) -> tuple[int, ...]:
    """Return the ascending indices `i` such that a cut after message `i` separates no tool call
    from its results."""
    reach = list(range(len(messages)))  # the last message that must stay with this one
    for end, start in _find_result_pairs(messages):
        reach[start] = end
    stop = _find_waiting_index(messages)
    furthest_ends = accumulate(reach, max)
    return tuple(i for i, furthest in enumerate(furthest_ends) if furthest == i and i < stop)


def find_safe_cut(messages: Sequence[Mark], limit: int, least: int) -> int:
    """Return the number of leading messages to take so that they weigh at most `limit` tokens; 0 if
    there is no closed end to cut at.

    Takes the latest cut before a user message that yields at least `least` tokens, else the latest
    closed end. A first block that alone exceeds `limit` is taken alone: its reader clips it.
    """
    ends = find_closed_ends(messages)
    weights = list(accumulate(m.tokens + MESSAGE_FRAMING_TOKENS for m in messages))
    fitting = [i for i in ends if weights[i] <= limit]
    if not fitting:
        return ends[0] + 1 if ends else 0
    before_user = next((i for i in reversed(fitting) if _user_follows(messages, i)), None)
    if before_user is not None and weights[before_user] >= least:
        return before_user + 1
    return fitting[-1] + 1


def count_closed(messages: Sequence[Mark], most: int) -> int:
    """Return the largest number of leading messages, at most `most`, after which a cut separates no
    tool call from its results. Looks at the end of the list, as far as results stand there; at all
    of it if one has no call."""
    most = min(most, _find_waiting_index(messages))
    if most == len(messages):
        return most
    wanted: set[str] = set()  # ids of results whose calls stand further ahead
    for index in reversed(range(len(messages))):
        message = messages[index]
        wanted.difference_update(message.calls)
        if message.answers is not None:
            wanted.add(message.answers)
        if index <= most and not wanted:
            return index
    return max((end + 1 for end in find_closed_ends(messages) if end < most), default=0)


def first_asked_index(messages: Sequence[Mark]) -> int:
    """Return the index of the first message of what the request itself asks, which is never covered
    in the request's prompt.

    These are the messages after the last assistant message, and the calls that they answer or that
    are still open. If results of other calls came between, it begins at the nearest cut before.
    """
    last = next((i for i in reversed(range(len(messages))) if messages[i].role == "assistant"), -1)
    return count_closed(messages, last + 1)


def _find_result_pairs(messages: Sequence[Mark]) -> list[tuple[int, int]]:
    """Return for every result with a call before it: (its index, the index of the message that made
    the call)."""
    callers: dict[str, int] = {}
    pairs = []
    for i, message in enumerate(messages):
        if message.answers is not None and message.answers in callers:
            pairs.append((i, callers[message.answers]))
        callers.update(dict.fromkeys(message.calls, i))
    return pairs


def _find_waiting_index(messages: Sequence[Mark]) -> int:
    """Return the index from which the end of the list waits for results; the list's length if it
    does not wait."""
    size = len(messages)
    first = next((i for i in reversed(range(size)) if messages[i].answers is None), size)
    results = {m.answers for m in messages[first + 1 :]}
    waiting_index = size
    # neighbouring messages with calls are one parallel step
    while 0 <= first < size and messages[first].calls:
        if not results.issuperset(messages[first].calls):
            waiting_index = first
        first -= 1
    return waiting_index


def _user_follows(messages: Sequence[Mark], index: int) -> bool:
    """Return whether the message after `index` is the user's. At the end of the list: whether the
    last message is a finished reply, so that the next one will be the user's."""
    if index + 1 < len(messages):
        return messages[index + 1].role == "user"
    return messages[index].role == "assistant" and not messages[index].calls
