"""A model's name is found where routes other than chat have it, and is none where it cannot be
read."""

from __future__ import annotations

import gzip
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.wire.apis.model_name import UnreadableModelName, read_model_name
from tests.support.counting import TIMES, measure_cpu_s

JSON, FORM = b"application/json", b'multipart/form-data; boundary="x"'


def part(name: bytes, value: bytes, more: bytes = b"") -> bytes:
    return (
        b"--x\r\nContent-Disposition: form-data; "
        + name
        + b"\r\n"
        + more
        + b"\r\n"
        + value
        + b"\r\n"
    )


MODEL_PART = part(b'name="model"', b"m")
END = b"--x--\r\n"


@pytest.mark.parametrize(
    ("body", "kind", "model"),
    [
        (b'{"input": ["a", {"model": "inner"}], "model": "m"}', JSON, "m"),
        (b' {"model": "m"}', b"application/json; charset=utf-8", "m"),
        (b'{"model": "m"}', b"", "m"),
        (b'{"model": "\\u00fc"}', JSON, "\u00fc"),
        (b'{"model": null}', JSON, None),
        (b'["model", "m"]', JSON, None),
        (b"[" * 100_000, JSON, None),
        (b"", JSON, None),
        (b"\xff\x00", b"application/octet-stream", None),
        (b"model", b"text/plain", None),
        # lax, but some servers read it
        (b'\xef\xbb\xbf{"model": "m"}', JSON, "m"),
        (b'{"input": "\\ud83d", "model": "m"}', JSON, "m"),
        (b'{"input": NaN, "model": "m"}', JSON, "m"),
        (b'{"input": "\t", "model": "m"}', b"", "m"),
        ('{"model": "m"}'.encode("utf-16"), JSON, "m"),
        (b"input=x&model=m", b"application/x-www-form-urlencoded", "m"),
        (b"input=x", b"application/x-www-form-urlencoded", None),
        # forms
        (part(b'name="model"', b"whisper-1") + END, FORM, "whisper-1"),
        (part(b"name=model", b"whisper-1") + END, FORM, "whisper-1"),
        (part(b'name = "model"', b"m") + END, FORM, "m"),
        (part(b"name*=UTF-8''model", b"m") + END, FORM, "m"),
        (part(b'\r\n name="model"', b"m") + END, FORM, "m"),
        (part(b'name="file"; filename="a"', b"\x00") + part(b'name="model"', b"m", b"Content-Type: a/b\r\n") + END, FORM, "m"),
        (part(b'name="file"; filename="a; name=model; b"', b"qwen") + part(b'name="model"', b"m") + END, FORM, "m"),
        (part(b'filename="a\\"; name=model"; name="file"', b"qwen") + MODEL_PART + END, FORM, "m"),
        (part(b'name="file"; filename="a"', b'name="model"\r\n\r\nm\r\n') + part(b'name="model"', b"n") + END, FORM, "n"),
        (b"preamble\r\n" + MODEL_PART + END, FORM, "m"),
        (MODEL_PART + END, b"multipart/form-data; charset=utf-8; BOUNDARY=x", "m"),
        (part(b'name="file"; filename="model"', b"m") + END, FORM, None),
        (part(b'x-name="model"', b"m") + END, FORM, None),
        (END, FORM, None),
    ],
)  # fmt: skip
def test_model(body: bytes, kind: bytes, model: str | None) -> None:
    """A name is read whole or not at all."""
    assert read_model_name(body, kind) == model


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"model": 7}', JSON),
        (b'{"model": "m"', JSON),
        (b'{"model": "m"', b""),
        (b'{"model": "%b"}' % (b"m" * 513), JSON),
        (b"\xff", JSON),
        (b'{"a":' + b"[" * 100_000, JSON),
        (MODEL_PART, JSON),
        (b"model=%ff&" * 201, b"application/x-www-form-urlencoded"),
        (b"model=m&x=" + b"%41" * 400_000, b"application/x-www-form-urlencoded"),
        (b"model=" + b"m" * 513, b"application/x-www-form-urlencoded"),
        (MODEL_PART[:-2], FORM),
        (part(b'name="model"', b"m" * 513) + END, FORM),
        (part(b'name="model"', b"\xff") + END, FORM),
        (part(b'name="a"', b"b") * 200 + MODEL_PART + END, FORM),
        (part(b'name="a"; x="%b"' % (b"x" * 1_024), b"b") + MODEL_PART + END, FORM),
        (MODEL_PART.replace(b"\r\n", b"\n") + END, FORM),
        (MODEL_PART + END, b"multipart/form-data"),
        (MODEL_PART + END, b"multipart/form-data; boundary=y"),
        (MODEL_PART + END, b"multipart/form-data; boundary=x" + b" " * 1_024),
        (MODEL_PART + END, b"multipart/form-data; boundary*=utf-8''%E2%82%AC"),
    ],
)
def test_what_cannot_be_read(body: bytes, kind: bytes) -> None:
    """There may be a name in it: whoever asks must not take it for none."""
    with pytest.raises(UnreadableModelName):
        read_model_name(body, kind)


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (b"x", b"gzip"),
        (gzip.compress(b'{"model": "m"}'), b"br"),
        (gzip.compress(b'{"model": "m", "input": "%b"}' % (b"x" * 2_000)), b"gzip"),
    ],
    ids=["damaged", "another kind", "too large"],
)
def test_a_compressed_body_that_cannot_be_read(body: bytes, encoding: bytes) -> None:
    """No more is uncompressed than is taken of a body."""
    with pytest.raises(UnreadableModelName):
        read_model_name(body, JSON, encoding, max_bytes=1_000)


HOSTILE = [
    b'--x\r\ncontent-disposition: form-data; x="',
    b'; x="',
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

    def look(count: int) -> None:
        with suppress(UnreadableModelName):
            read_model_name(b"--x\r\n" + piece * count, FORM)

    took = [measure_cpu_s(partial(look, count)) for count in (50_000, 50_000 * TIMES)]
    assert took[1] < 3 * TIMES * max(took[0], 0.002)


TYPES = st.sampled_from(
    [JSON, FORM, b"", b"text/plain", b"multipart/", b'multipart/x; boundary="\xe9']
)


@given(
    st.binary() | st.binary().map(lambda data: b"--x" + data),
    TYPES | st.binary().map(lambda data: b"multipart/form-data;" + data),
)
def test_anything(body: bytes, kind: bytes) -> None:
    """Whatever comes, there is an answer: a name, none, or that it cannot be read."""
    with suppress(UnreadableModelName):
        assert isinstance(read_model_name(body, kind), str | None)
