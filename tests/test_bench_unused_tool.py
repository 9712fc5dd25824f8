"""`scripts/bench unused-tool`: how its figures are read, and its model server with its client."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.bench.unused_tool import (
    EVENTS,
    Model,
    check_head,
    compare,
    join_text,
    read_length,
    render,
)

QUESTION = b'{"stream":%s,"messages":[{"role":"user","content":"turn 7: go on"}]}'


@pytest.fixture
def model() -> Iterator[Model]:
    with closing(Model()) as model:
        yield model


def test_a_figure_is_compared_round_by_round() -> None:
    """A round that was slow for both says nothing about the tool."""
    off = [10.0, 90.0, 10.0, 20.0, 300.0]
    change = compare("cpu_us", off, [one + 2.0 for one in off])
    assert (change.off, change.on, change.share) == (20.0, 22.0, 0.1)
    assert change.low == change.high == 0.1
    assert "+10.0%" in render([("retry json", [change])])


@pytest.mark.parametrize("stream", [b"true", b"false"])
def test_the_same_question_gets_the_same_reply(model: Model, stream: bytes) -> None:
    """Else a retry would be a turn. A stream's next event waits for the client."""
    body = QUESTION % stream
    request = b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    replies = []
    with socket.create_connection(("127.0.0.1", model.port)) as connection:
        connection.settimeout(10)
        for _ in range(2):
            connection.sendall(request)
            reply, released = b"", 0
            while True:
                reply += connection.recv(1 << 16)
                head, end, data = reply.partition(b"\r\n\r\n")
                if not end:
                    continue
                while released < min(data.count(b"\n\n"), EVENTS):
                    model.next_event.release()
                    released += 1
                if data.endswith(b"0\r\n\r\n") or len(data) == read_length(head):
                    break
            replies.append(data)
    assert replies[0] == replies[1]
    assert join_text(replies[0]).startswith("7: and so on.")
    assert replies[0].count(b"\n\n") == (EVENTS + 2 if stream == b"true" else 0)


@pytest.mark.parametrize(
    ("more", "offers"),
    [
        (b"", b"x-om-recall: offered"),
        (b"x-om-recall: refused\r\n", b"x-om-recall: offered"),
        (b"x-om-recall: offered\r\n", b""),
    ],
)
def test_a_server_in_another_state_is_not_measured(more: bytes, offers: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nx-om-status: applied\r\n" + more
    with pytest.raises(AssertionError):
        check_head(head, offers)
