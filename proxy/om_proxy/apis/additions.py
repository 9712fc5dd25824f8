"""Name what the proxy adds to a request or changes in it, and decide what is taken back when a model
server refuses the request.

Servers word their refusals differently, and change the words. So trial decides, not the words:

- Every status from 400 on can be a refusal, except 401, 403, 429 and 529.
- 400, 413 and 422 are about the request. One addition after another is taken back, the likeliest
  first: those that this server never accepted, then those that depend on the content.
- Every other status may be an outage. It counts only if there are additions that the server never
  accepted. All of these are taken back at once, in one extra call, with pictures, which a server may
  fail to fetch. If that call fails too, there is no other for a while.
- What was taken back from a request that was then accepted is left out of the next ones for a
  while. Then it is put back, one addition at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import IntFlag, auto

from om_proxy.bounded_cache import BoundedCache

NO_REFUSAL_STATUSES = (401, 403, 429, 529)
REQUEST_FAULT_STATUSES = (400, 413, 422)
FIRST_WAIT_S, MAX_WAIT_S = 60.0, 3_600.0
MAX_REMEMBERED_KINDS = 1_024  # clients name models as they like


class Addition(IntFlag):
    """The parts of a request that are the proxy's own, the likeliest to be refused first."""

    # stored messages as they were, not plain. It comes first: a server that takes the tool would
    # else go without it wherever it refuses a form, and mostly there is no plainer one to send.
    FORM = auto()
    PICTURES = auto()  # of a memory call
    TOOL = auto()  # for look-ups
    OPTIONS = auto()  # of a memory call: how its model runs
    LIMIT_NAME = auto()  # of a memory call: the usual name of its output limit
    LIMIT = auto()  # of a memory call's output
    TEMPERATURE = auto()  # of a memory call
    UNSTREAMED = auto()  # a memory call's answer in one piece
    SYSTEM = auto()  # a system message with memory's block, or with a memory call's prompt
    HISTORY = auto()  # another history than the client's own


NOTHING = Addition(0)
# those whose refusal may be about this one request's content
VARYING = Addition.PICTURES | Addition.TOOL | Addition.LIMIT | Addition.FORM | Addition.HISTORY
# those that make a prompt longer, or leave less room for it
LENGTHENING = Addition.PICTURES | Addition.TOOL | Addition.LIMIT
# the others depend on the content alone
REMEMBERED = ~(Addition.PICTURES | Addition.FORM | Addition.HISTORY)


class Lessons:
    """What one server has accepted and refused in requests of one kind. `now`: seconds of a clock
    that the caller chooses."""

    __slots__ = ("_accepted", "_fruitless_wait_s", "_is_tried_at", "_usual", "left_out")

    def __init__(self) -> None:
        self._accepted = NOTHING
        # when each is put back, and how long it was left out
        self.left_out: dict[Addition, tuple[float, float]] = {}
        self._fruitless_wait_s = 0.0
        self._is_tried_at = 0.0  # when a call is worth another trial
        # of the last request, if its acceptance teaches nothing new: most requests are like it, and
        # an operation on flags takes a microsecond
        self._usual = NOTHING

    def list_left_out(self, now: float) -> Addition:
        """Return what to leave out now. Of those whose time is over, one is put back."""
        left_out = NOTHING
        is_put_back = False
        for addition, (put_back_at, _) in self.left_out.items():
            if put_back_at <= now and not is_put_back:
                is_put_back = True
            else:
                left_out |= addition
        return left_out

    def choose_taken_back(
        self, sent: Addition, status: int, now: float, *, is_first: bool, is_too_long: bool
    ) -> Addition:
        """Return what to take back after this refusal of a request with these additions; NOTHING:
        the refusal stands. `is_first`: nothing was taken back yet. `is_too_long`: the server says
        that the prompt is."""
        is_tried = self._is_tried_at <= now
        unknown = sent & ~self._accepted
        if status < 400 or status in NO_REFUSAL_STATUSES:
            return NOTHING
        if status not in REQUEST_FAULT_STATUSES:
            return unknown | sent & Addition.PICTURES if is_first and is_tried else NOTHING
        if is_too_long:
            return _first_of(sent & LENGTHENING)
        return _first_of(unknown if is_tried else NOTHING) or _first_of(sent & VARYING)

    def count_accepted(
        self, sent: Addition, taken_back: Addition, refused: Addition, now: float
    ) -> None:
        """Note an accepted request with these additions, and what was taken back before it.
        `refused`: the part of that which was refused for certain."""
        if sent is self._usual and not taken_back:
            return
        self._usual = NOTHING if taken_back else sent
        self._accepted |= sent
        self._fruitless_wait_s = self._is_tried_at = 0.0
        for addition in sent if self.left_out else ():
            self.left_out.pop(addition, None)
        for addition in taken_back & REMEMBERED:
            if not self._accepted & addition:
                self._leave_out(addition, now, MAX_WAIT_S if addition & refused else FIRST_WAIT_S)
        self._accepted &= ~refused  # what was accepted before must be refused twice in a row

    def count_fruitless(self, now: float) -> None:
        """Note that a request was refused whatever was taken back."""
        self._usual = NOTHING
        self._fruitless_wait_s = _double(self._fruitless_wait_s)
        self._is_tried_at = now + self._fruitless_wait_s

    def _leave_out(self, addition: Addition, now: float, wait_s: float) -> None:
        _, earlier_wait_s = self.left_out.pop(addition, (0.0, 0.0))
        wait_s = max(wait_s, _double(earlier_wait_s))
        self.left_out[addition] = (now + wait_s, wait_s)


class Trial:
    """One request on its way to a server. `sent`: the additions that it has now. `additions`: those
    that it would have if nothing was known of the server. `clock`: in seconds."""

    __slots__ = ("_clock", "_left_out", "_lessons", "_refused", "_taken_back", "sent")

    def __init__(self, lessons: Lessons, additions: Addition, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lessons = lessons
        self._taken_back = NOTHING
        self._refused = NOTHING  # for certain: without it the request was accepted
        # every request begins one, and most servers refuse nothing
        self._left_out = lessons.list_left_out(clock()) if lessons.left_out else NOTHING
        self.limit_to(additions)

    def limit_to(self, additions: Addition) -> None:
        """Leave only these in the request, without those that the server refused lately."""
        self.sent = additions & ~self._left_out if self._left_out else additions

    def take_back(self, status: int, *, is_too_long: bool = False) -> Addition:
        """Take back what the refusal may be about, and return it; NOTHING: the refusal stands.
        `is_too_long`: the server says that the prompt is."""
        taken = self._lessons.choose_taken_back(
            self.sent, status, self._clock(), is_first=not self._taken_back, is_too_long=is_too_long
        )
        if not taken:
            return NOTHING
        self.sent &= ~taken
        # a prompt that is too long says nothing of what it has, but for the room that an answer wants
        if not is_too_long or taken is Addition.LIMIT:
            self._taken_back |= taken
        self._refused = taken & self._taken_back if status in REQUEST_FAULT_STATUSES else NOTHING
        return taken

    def end(self, status: int) -> None:
        """Learn from the status that is the end of it."""
        if 200 <= status < 300:
            self._lessons.count_accepted(self.sent, self._taken_back, self._refused, self._clock())
        elif self._taken_back and status not in NO_REFUSAL_STATUSES:
            self._lessons.count_fruitless(self._clock())


class LessonBook:
    """The lessons of one process, by the kind of request."""

    def __init__(self) -> None:
        self._lessons: BoundedCache[Hashable, Lessons] = BoundedCache(
            max_items=MAX_REMEMBERED_KINDS
        )

    def find(self, kind: Hashable) -> Lessons:
        """Return the lessons of this kind of request: its server, its model, and all else that a
        refusal may depend on."""
        lessons = self._lessons.get(kind)
        if lessons is None:
            lessons = Lessons()
            self._lessons.put(kind, lessons)
        return lessons


def _first_of(additions: Addition) -> Addition:
    return next(iter(additions), NOTHING)


def _double(wait_s: float) -> float:
    return min(max(2 * wait_s, FIRST_WAIT_S), MAX_WAIT_S)
