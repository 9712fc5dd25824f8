"""Write a tiny model as ONNX's own bytes, so that tests need no package that makes models.

The model looks each token's vector up in a table: the output has one for each token.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import orjson

FLOAT, INT64 = 1, 7
WORDS = ("[PAD]", "[UNK]", "cat", "dog", "violin", "music")


def write_model(folder: Path, vectors: Sequence[Sequence[float]], *, pooled: bool = False) -> Path:
    """Write `model.onnx` and `tokenizer.json`. `vectors`: of each of WORDS. `pooled`: the output has
    one vector for each text: the mean over all its tokens."""
    size = len(vectors[0])
    numbers = b"".join(struct.pack(f"<{size}f", *vector) for vector in vectors)
    table = (
        _number(1, len(vectors))
        + _number(1, size)
        + _number(2, FLOAT)
        + _text(8, "table")
        + _block(9, numbers)
    )
    looked_up = "tokens" if pooled else "out"
    nodes = [_text(1, "table") + _text(1, "input_ids") + _text(2, looked_up) + _text(4, "Gather")]
    if pooled:
        axes = _text(1, "axes") + _number(8, 1) + _number(20, 7)
        keep = _text(1, "keepdims") + _number(3, 0) + _number(20, 2)
        mean = _text(1, looked_up) + _text(2, "out") + _text(4, "ReduceMean")
        nodes.append(mean + _block(5, axes) + _block(5, keep))
    graph = b"".join(_block(1, node) for node in nodes) + _text(2, "graph") + _block(5, table)
    graph += _block(11, _describe("input_ids", INT64, 2))
    graph += _block(12, _describe("out", FLOAT, 2 if pooled else 3))
    model = _number(1, 8) + _block(7, graph) + _block(8, _text(1, "") + _number(2, 13))
    file = folder / "model.onnx"
    file.write_bytes(model)
    (folder / "tokenizer.json").write_bytes(
        orjson.dumps(
            {
                "version": "1.0",
                "truncation": None,
                "padding": None,
                "added_tokens": [],
                "normalizer": {"type": "Lowercase"},
                "pre_tokenizer": {"type": "Whitespace"},
                "post_processor": None,
                "decoder": None,
                "model": {
                    "type": "WordLevel",
                    "vocab": {word: number for number, word in enumerate(WORDS)},
                    "unk_token": "[UNK]",
                },
            }
        )
    )
    return file


def _describe(name: str, kind: int, dimensions: int) -> bytes:
    shape = b"".join(_block(1, _text(2, f"d{number}")) for number in range(dimensions))
    return _text(1, name) + _block(2, _block(1, _number(1, kind) + _block(2, shape)))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _block(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _text(field: int, value: str) -> bytes:
    return _block(field, value.encode())
