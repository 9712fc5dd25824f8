"""Bent requests neither hang the proxy, nor make it answer 5xx or half, nor grow; scripts/fuzz does
the same 100 000 times."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tests.e2e.bounds.serving import needs_proc
from tests.e2e.fuzz.bending import bent, pieces
from tests.e2e.fuzz.fuzzing import GROWN, Told, case, faults, fuzzed, judged, whole
from tests.e2e.fuzz.honest_requests import HONEST_REQUESTS
from tests.support.long_forms import IS_LONG

CASES = 1_000 if IS_LONG else 300


@needs_proc
async def test_bent_requests(tmp_path: Path) -> None:
    """Many of them get through to the model server and the memory, which is the point."""
    told = await fuzzed(tmp_path, CASES, seed=7)
    assert faults(told) == []
    assert told.cases == CASES
    assert told.answers["200"] > CASES / 3
    assert told.answers["400"] > CASES / 10
    assert told.answers["none"] < CASES / 100


def test_a_case_comes_again() -> None:
    """Its number says all."""
    assert [case(3, n) for n in range(200)] == [case(3, n) for n in range(200)]
    assert len({b"".join(case(3, n)[0]) for n in range(200)}) > 180


def test_packets() -> None:
    """However a request is cut, all of it is sent."""
    for n in range(300):
        dice = Random(n)
        written = bent(dice)
        assert b"".join(pieces(written, dice)) == written


@pytest.mark.parametrize("seed", HONEST_REQUESTS, ids=lambda seed: seed.target.decode())
def test_seeds(seed: object) -> None:
    """What is bent is a request before."""
    assert seed in HONEST_REQUESTS
    head, end, _ = next(s for s in HONEST_REQUESTS if s == seed).written().partition(b"\r\n\r\n")
    assert end
    assert head.split(b"\r\n")[0].endswith(b"HTTP/1.1")


POST = b"POST /v1/files HTTP/1.1\r\n\r\n"
HEAD = b"\r\nHEAD /v1/models HTTP/1.1\r\n\r\n"


@pytest.mark.parametrize(
    ("got", "answers", "wrong"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", {"200": 1}, ""),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 400 Bad Request\r\n\r\n", {"400": 1}, ""),
        (b"HTTP/1.1 500 Internal Server Error\r\n\r\nInternal Server Error", {"500": 1}, "500: "),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n{}", {"502": 1}, "502: "),
        (b"HTTP/1.1 501 Not Implemented\r\n\r\n{}", {"501": 1}, ""),
        (b'x"}]}\n\n', {"none": 1}, "no HTTP: "),
        (b"", {"none": 1}, "no answer"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", {"none": 1}, "no answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", {"200": 1}, "cut off: "),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\nx", {"200": 1}, "cut off: "),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n",
            {"200": 1},
            "cut off: ",
        ),
    ],
)
def test_what_is_wrong(got: bytes, answers: dict[str, int], wrong: str) -> None:
    """A 5xx is, whoever makes it: the model server of these tests makes none."""
    told = Told()
    found = judged(POST, got, told)
    assert [what[: len(wrong)] for what in found] == ([wrong] if wrong else [])
    assert told.answers == Counter(answers)


def test_to_whom_no_answer_is_due() -> None:
    """To who has sent nothing at all; a line's end is something."""
    assert judged(b"", b"", Told()) == []
    assert judged(b"\r\n", b"", Told()) == ["no answer"]


def test_memory_that_grew() -> None:
    """Is a fault of its own, whatever was answered."""
    assert faults(Told(grown=GROWN)) == []
    assert faults(Told(grown=GROWN + 1, wrong=[("no end", 7)])) == [
        "case 7: no end",
        "memory grew by 33 MiB, more than 32",
    ]


@pytest.mark.parametrize(
    ("got", "complete"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nx", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nxy", True),
        (b"HTTP/1.1 100 Continue\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n", False),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n0\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz", False),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", True),
    ],
)
def test_when_an_answer_is_complete(got: bytes, complete: bool) -> None:
    """What is not complete is waited for, to the time-out that makes it a hang."""
    assert whole(POST, got) is complete


def test_an_answer_to_head() -> None:
    """It announces a body that does not come."""
    assert whole(HEAD, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
    assert not whole(HEAD, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n")
