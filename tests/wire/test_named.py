"""A model's name is found where routes other than chat have it, and is none where it cannot be read."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.named import model_of
from tests.support.counting import TIMES, seconds

JSON, FORM = b"application/json", b'multipart/form-data; boundary="x"'


def part(name: bytes, value: bytes, more: bytes = b"") -> bytes:
    return b"--x\r\nContent-Disposition: form-data; " + name + b"\r\n" + more + b"\r\n" + value + b"\r\n"


@pytest.mark.parametrize(
    ("body", "kind", "model"),
    [
        (b'{"input": ["a", {"model": "inner"}], "model": "m"}', JSON, "m"),
        (b' {"model": "m"}', b"application/json; charset=utf-8", "m"),
        (b'{"model": "m"}', b"", "m"),
        (b'{"model": "\\u00fc"}', JSON, "\u00fc"),
        (b'{"model": null}', JSON, None),
        (b'{"model": 7}', JSON, None),
        (b'{"model": "m"', JSON, None),
        (b'["model", "m"]', JSON, None),
        (b"\xff", JSON, None),
        (b"", JSON, None),
        (b"[" * 100_000, JSON, None),
        (part(b'name="model"', b"whisper-1") + b"--x--\r\n", FORM, "whisper-1"),
        (part(b"name=model", b"whisper-1") + b"--x--\r\n", FORM, "whisper-1"),
        (part(b'name="file"; filename="a"', b"\x00") + part(b'name="model"', b"m", b"Content-Type: a/b\r\n") + b"--x", FORM, "m"),
        (part(b'name="file"; filename="model"', b"m"), FORM, None),
        (part(b'name="model"', b"m")[:-2], FORM, None),
        (part(b'name="model"', b"m"), JSON, None),
        (b"preamble\r\n" + part(b'name="model"', b"m") + b"--x--", FORM, "m"),
        (part(b'name="file"; filename="a"', b'name="model"\r\n\r\nm\r\n') + part(b'name="model"', b"n") + b"--x--", FORM, "n"),
        (part(b'name="model"', b"m" * 257) + b"--x--", FORM, None),
        (part(b'x-name="model"', b"m") + b"--x--", FORM, None),
        (part(b'name="model"', b"m") + b"--x--", b"multipart/form-data", None),
        (part(b'name="model"', b"m") + b"--x--", b"multipart/form-data; boundary=y", None),
        (part(b'name="a"', b"b") * 1_000 + part(b'name="model"', b"m") + b"--x--", FORM, None),
    ],
)  # fmt: skip
def test_model(body: bytes, kind: bytes, model: str | None) -> None:
    """A name is read whole or not at all."""
    assert model_of(body, kind) == model


HOSTILE = [
    b"name=model\r\n",
    b"\r\n--x",
    b"\r\n--x\r\n",
    b"--x\r\nContent-Disposition: form-data; name=model\r\n",
    b"\r\n\r\n",
    b";\t",
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_a_form_costs_no_more_than_its_length(piece: bytes) -> None:
    """The event loop waits for it: it is looked through once, whatever it is made of."""
    took = [seconds(partial(model_of, b"--x\r\n" + piece * count, FORM)) for count in (50_000, 50_000 * TIMES)]
    assert took[1] < 3 * TIMES * max(took[0], 0.002)


@given(st.binary(), st.sampled_from([JSON, FORM, b"", b"text/plain", b"multipart/", b'multipart/x; boundary="\xe9']))
def test_anything(body: bytes, kind: bytes) -> None:
    """Whatever comes, there is an answer."""
    assert isinstance(model_of(body, kind), str | None)
