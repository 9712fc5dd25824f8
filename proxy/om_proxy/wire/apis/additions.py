"""Name what the proxy adds to a request or changes in it, and decide what is taken back when a model
server refuses the request.

Servers word their refusals differently, and change the words. So trial decides, not the words:

- Every status from 400 on can be a refusal, except 401, 403, 429 and 529. If the server says when to
  come back, only one that is about the request is.
- 400, 413 and 422 are about the request. One addition after another is taken back, the likeliest
  first: those that this server never accepted, those that depend on the content, all others.
- Every other status may be an outage. All additions that the server never accepted are taken back
  at once, in one extra call, with pictures, which a server may fail to fetch. If there are none, or
  that did not help, it is all additions, at most once a minute. If that call fails too, there is no
  other for a while.
- What was taken back from a request that was then accepted is left out of the next ones for a
  while; of what the server had accepted before, after two such requests in a row. Then it is put
  back, one addition at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import IntFlag, auto

from om_proxy.common.bounded_cache import BoundedCache

NO_REFUSAL_STATUSES = (401, 403, 429, 529)
REQUEST_FAULT_STATUSES = (400, 413, 422)
# a server is no busy one if it answers one of these, even if it says when to come back
FAULT_OR_UNKNOWN_STATUSES = (*REQUEST_FAULT_STATUSES, 404)
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
VARYING = Addition.PICTURES | Addition.TOOL | Addition.LIMIT | Addition.FORM
# those that make a prompt longer, or leave less room for it
LENGTHENING = Addition.PICTURES | Addition.TOOL | Addition.LIMIT
# the others depend on the content alone
REMEMBERED = ~(Addition.PICTURES | Addition.HISTORY)
# in a row: then the tool is left out, or the form of what was looked up
MAX_REFUSED_ROUNDS = 2


class Lessons:
    """The record of what one server accepted and refused in requests of one kind. `now`: seconds of
    a clock that the caller chooses."""

    __slots__ = (
        "_accepted",
        "_fruitless_wait_s",
        "_is_doubted_at",
        "_is_tried_at",
        "_plain_rounds_end_at",
        "_refused_forms",
        "_refused_rounds",
        "_usual",
        "left_out",
        "with_pictures",
    )

    def __init__(self) -> None:
        self._accepted = NOTHING
        # when each is put back, and how long it was left out
        self.left_out: dict[Addition, tuple[float, float]] = {}
        self._fruitless_wait_s = 0.0
        self._is_tried_at = 0.0  # when a call is worth another trial
        self._is_doubted_at = 0.0  # when what was accepted is worth one
        self._refused_rounds = 0  # in a row
        self._refused_forms = 0  # of rounds in a row that were accepted in their plain form
        self._plain_rounds_end_at = 0.0  # until then they are plain at once
        # of requests that show pictures, itself if these are; None: none of them was refused yet
        self.with_pictures: Lessons | None = None
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
        self, sent: Addition, status: int, now: float, *, may_be_outage: bool, is_too_long: bool
    ) -> Addition:
        """Return what to take back after this refusal of a request with these additions; NOTHING:
        the refusal stands. `may_be_outage`: no status of this request was taken for one yet.
        `is_too_long`: the server says that the prompt is."""
        is_tried = self._is_tried_at <= now
        if status not in REQUEST_FAULT_STATUSES:
            return self._choose_in_outage(sent, now) if may_be_outage and is_tried else NOTHING
        if is_too_long:
            return _first_of(sent & LENGTHENING)
        return (
            _first_of(sent & ~self._accepted if is_tried else NOTHING)
            or _first_of(sent & VARYING)
            or (sent & ~Addition.HISTORY if is_tried else NOTHING)
            or sent & Addition.HISTORY
        )

    def _choose_in_outage(self, sent: Addition, now: float) -> Addition:
        """Return what to take back after a status that may be an outage."""
        suspects = sent & (~self._accepted | Addition.PICTURES)
        has_helped = not self._fruitless_wait_s
        if (suspects and has_helped) or now < self._is_doubted_at:
            return suspects
        self._is_doubted_at = now + FIRST_WAIT_S
        return sent

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
        if not taken_back:
            return
        self._is_doubted_at = 0.0
        for addition in taken_back & REMEMBERED:
            if not self._accepted & addition:
                self._leave_out(addition, now, MAX_WAIT_S if addition & refused else FIRST_WAIT_S)
        # what was accepted before must be refused twice in a row
        self._accepted &= ~(refused or taken_back)

    def count_round(self, now: float, *, is_accepted: bool) -> None:
        """Note whether the server accepted a request with what was looked up by the tool. One that
        refuses it, and accepts the same without the tool, is no server for look-ups."""
        self._refused_rounds = 0 if is_accepted else self._refused_rounds + 1
        if self._refused_rounds >= MAX_REFUSED_ROUNDS:
            self._refused_rounds = 0
            self._usual = NOTHING
            self._accepted &= ~Addition.TOOL
            self._leave_out(Addition.TOOL, now, MAX_WAIT_S)

    def count_form(self, now: float, *, is_accepted: bool) -> None:
        """Note whether the server accepted the form of what was looked up, or the plain form alone."""
        self._refused_forms = 0 if is_accepted else self._refused_forms + 1
        if self._refused_forms >= MAX_REFUSED_ROUNDS:
            self._refused_forms = 0
            self._plain_rounds_end_at = now + MAX_WAIT_S

    def has_plain_rounds(self, now: float) -> bool:
        """Return whether what is looked up goes out in its plain form at once."""
        return now < self._plain_rounds_end_at

    def has_accepted(self, sent: Addition) -> bool:
        """Return whether the server has accepted all of these."""
        return sent is self._usual or not sent & ~self._accepted

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

    __slots__ = (
        "_clock",
        "_left_out",
        "_lessons",
        "_may_be_outage",
        "_refused",
        "_taken_back",
        "sent",
    )

    def __init__(self, lessons: Lessons, additions: Addition, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lessons = lessons
        self._taken_back = NOTHING
        self._refused = NOTHING  # for certain: without it the request was accepted
        self._may_be_outage = True  # no status was taken for one yet: one costs one extra call
        # every request begins one, and most servers refuse nothing
        self._left_out = lessons.list_left_out(clock()) if lessons.left_out else NOTHING
        self.limit_to(additions)

    def limit_to(self, additions: Addition) -> None:
        """Leave only these in the request, without those that the server refused lately."""
        self.sent = additions & ~self._left_out if self._left_out else additions

    @property
    def is_in_doubt(self) -> bool:
        """Whether the server may refuse the request for what the proxy adds to it or changed in
        it, as far as is known."""
        return bool(self._taken_back) or not self._lessons.has_accepted(self.sent)

    def move_to_pictures(self) -> None:
        """Learn from now on for requests that show pictures: a server may refuse what it takes in
        all others."""
        pictures = self._lessons.with_pictures
        if pictures is None:
            self._lessons.with_pictures = pictures = Lessons()
            pictures.with_pictures = pictures
        self._lessons = pictures

    def take_back(
        self, status: int, *, is_too_long: bool = False, has_retry_after: bool = False
    ) -> Addition:
        """Take back what the refusal may be about, and return it; NOTHING: the refusal stands.
        `is_too_long`: the server says that the prompt is. `has_retry_after`: it says when to come
        back."""
        if not is_refusal(status, has_retry_after=has_retry_after):
            return NOTHING
        taken = self._lessons.choose_taken_back(
            self.sent,
            status,
            self._clock(),
            may_be_outage=self._may_be_outage,
            is_too_long=is_too_long,
        )
        if not taken:
            return NOTHING
        self.sent &= ~taken
        # a prompt that is too long says nothing of what it has, but for the room that an answer wants
        if not is_too_long or taken is Addition.LIMIT:
            self._taken_back |= taken
        is_certain = status in REQUEST_FAULT_STATUSES
        self._may_be_outage &= is_certain
        self._refused = taken & self._taken_back if is_certain else NOTHING
        return taken

    def acquit(self, addition: Addition) -> None:
        """Note that the request is the same without this."""
        self._taken_back &= ~addition
        self._refused &= ~addition

    def count_round(self, *, is_accepted: bool) -> None:
        """Note whether the server accepted a later round, with what was looked up."""
        self._lessons.count_round(self._clock(), is_accepted=is_accepted)

    def count_form(self, *, is_accepted: bool) -> None:
        """Note whether the server accepted the form of an accepted round, or the plain form alone."""
        self._lessons.count_form(self._clock(), is_accepted=is_accepted)

    @property
    def has_plain_rounds(self) -> bool:
        """Whether what is looked up goes out in its plain form at once."""
        return self._lessons.has_plain_rounds(self._clock())

    def end(self, status: int) -> None:
        """Learn from the status that is the end of it."""
        if 200 <= status < 300:
            self._lessons.count_accepted(self.sent, self._taken_back, self._refused, self._clock())
        elif self._taken_back and status not in NO_REFUSAL_STATUSES:
            self._lessons.count_fruitless(self._clock())


class LessonBook(BoundedCache[Hashable, Lessons]):
    """The lessons of one process, by the kind of request."""

    def __init__(self) -> None:
        super().__init__(max_items=MAX_REMEMBERED_KINDS)

    def find(self, kind: Hashable) -> Lessons:
        """Return the lessons of this kind of request: its server, its model, and all else that a
        refusal may depend on."""
        lessons = self.get(kind)
        if lessons is None:
            lessons = Lessons()
            self.put(kind, lessons)
        return lessons


def is_refusal(status: int, *, has_retry_after: bool = False) -> bool:
    """Return whether a status can be about what a request has."""
    if has_retry_after:
        return status in FAULT_OR_UNKNOWN_STATUSES
    return status >= 400 and status not in NO_REFUSAL_STATUSES


def _first_of(additions: Addition) -> Addition:
    return next(iter(additions), NOTHING)


def _double(wait_s: float) -> float:
    return min(max(2 * wait_s, FIRST_WAIT_S), MAX_WAIT_S)
