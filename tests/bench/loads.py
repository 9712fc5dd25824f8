"""What each cell of the speed table plays: which generator, and the requests it sends.

- `1k_n:16` and the like: one body again and again (loadgen.c of the bench folder). With memory on
  these are retries: nothing is new in them, so nothing is counted or committed.
- `grow:16`: real turns (growgen.c of the bench folder). Each connection plays threads of 20 turns,
  one exchange more each time.
- `paced:1`, `growpaced:1`: the same two, but one request each 50 ms: caches are cold, and the work
  behind the reply is done.
- `sse1000:16`: streams of 50 events, one each 1 000 µs, started one after the other so that they do
  not queue (play.c). `sse33000:750`: of 200, one each 33 ms, which are 23 000 events a second.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

TURNS_OF_A_THREAD = 20
PACE_US = 50_000
MOST_TURNS_PER_S = 4_000  # that are not paced
MANY_STREAMS = "sse33000:750"
EVENTS_OF_A_STREAM, EVENTS_OF_MANY = 50, 200
MOST_STAGGER_US = 1_000_000  # of all streams
COUNTED_LENGTHS = 2.5  # of a stream: all that begin a length after the start have ended by then
# as long as growgen.c has them, and not the same: one of the peers keeps replies
SYSTEM = {
    "role": "system",
    "content": "You are a helpful assistant. Answer briefly and with care; ask back where something is "
    "unclear, and never invent facts that the user has not told you about.",
}
SAID = (
    "That is message number {} of thread {}: please tell me what I should look at next, given all that "
    "we have discussed so far, and keep it short."
)

Generator = Literal["loadgen", "growgen", "play"]


@dataclass(frozen=True, slots=True)
class Load:
    """A cell: `body` names a file of the bench folder's bodies; None where the requests are
    turns."""

    cell: str
    body: str | None
    connections: int
    generator: Generator
    stagger_us: int = 0
    every_us: int = 0
    least_s: float = 0.0

    @property
    def plays_turns(self) -> bool:
        return self.body is None


def count_events(cell: str) -> int:
    return EVENTS_OF_MANY if cell == MANY_STREAMS else EVENTS_OF_A_STREAM


def read_cell(cell: str) -> Load:
    """Raises ValueError for what is none."""
    name, colon, number = cell.partition(":")
    if not colon or not number.isdecimal() or int(number) < 1:
        raise ValueError(f"{cell!r} is no cell: write body:connections, as 1k_n:16 or grow:1")
    connections = int(number)
    if name == "grow":
        return Load(cell, None, connections, "growgen")
    if name == "growpaced":
        return Load(cell, None, connections, "play", PACE_US // connections, PACE_US)
    if name == "paced":
        return Load(cell, "1k_n", connections, "play", PACE_US // connections, PACE_US)
    if name.startswith("sse"):
        length_us = count_events(cell) * int(name.removeprefix("sse"))
        stagger_us = min(length_us, MOST_STAGGER_US) // connections
        least_s = COUNTED_LENGTHS * length_us / 1e6
        return Load(cell, name, connections, "play", stagger_us, 0, least_s)
    return Load(cell, name, connections, "loadgen")


def write_requests(
    load: Load,
    port: int,
    seconds: float,
    body: bytes,
    reply: Mapping[str, Any],
    headers: Sequence[str],
) -> bytes:
    """The file play.c reads. `reply`: what the model server always answers; `headers`: in each,
    #### becomes the thread's number."""
    if load.plays_turns:
        per_s = 1e6 / load.every_us if load.every_us else MOST_TURNS_PER_S / load.connections
        many = math.ceil((1.2 * seconds + 1) * per_s)
        found = list_turns(load.connections, many, port, reply, headers)
    else:
        found = (write_request(port, body, headers, number) for number in range(load.connections))
    return b"".join(b"%d\n%b" % (len(request), request) for request in found)


def list_turns(
    connections: int, many: int, port: int, reply: Mapping[str, Any], headers: Sequence[str]
) -> Iterator[bytes]:
    """So many turns of each connection, in turn; no connection shares a thread with another."""
    for turn in range(many):
        for connection in range(connections):
            thread, place = divmod(turn, TURNS_OF_A_THREAD)
            messages: list[Mapping[str, Any]] = [SYSTEM]
            for said in range(place + 1):
                messages += [reply] if said else []
                messages += [{"role": "user", "content": SAID.format(said + 1, thread)}]
            body = json.dumps(
                {"model": "gpt-4o", "stream": False, "messages": messages}, separators=(",", ":")
            ).encode()
            yield write_request(port, body, headers, thread * connections + connection)


def write_request(
    port: int,
    body: bytes,
    headers: Sequence[str],
    number: int,
    path: str = "/v1/chat/completions",
) -> bytes:
    head = [
        f"POST {path} HTTP/1.1",
        f"host: 127.0.0.1:{port}",
        "content-type: application/json",
        "authorization: Bearer sk-bench",
        "accept: */*",
        *(header.replace("####", f"{number:04}") for header in headers),
        f"content-length: {len(body)}",
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body
