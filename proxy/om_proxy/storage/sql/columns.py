"""Name the columns of the tables with their types, and write SQL that sets many rows at once.

A parameter in `INSERT … SELECT $1` has no type of its own and would be text, so every parameter and
array is written with its type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

Columns = Mapping[str, str]  # names with their types, in order

_FLOAT = "double precision"
# those of `row_decoding.THREAD_COLUMNS`
THREAD: Columns = {
    "next_seq": "bigint",
    "next_id": "bigint",
    "generation": "bigint",
    "next_generation": "bigint",
    "coverage": "bigint",
    "covered_count": "bigint",
    "covered_tokens": "bigint",
    "live_count": "bigint",
    "turn_at": _FLOAT,
    "due": _FLOAT,
    "needs_caller": "boolean",
    "failures": "bigint",
    "retry_at": _FLOAT,
    "parked": "boolean",
    "model": "bytea",
    "title": "bytea",
    "shared": "boolean",
    "pending": "bigint",
    "fresh": "bigint",
    "chunked": "bigint",
    "others": "bytea",
    "key_id": "bytea",
    "state": "bytea",
}
MESSAGE: Columns = {
    "seq": "bigint",
    "live": "smallint",
    "parent": "bigint",
    "fp": "bytea",
    "chain": "bytea",
    "role": "bytea",
    "calls": "bytea",
    "answers": "bytea",
    "tokens": "bigint",
    "at": _FLOAT,
    "encoding": "text",
    "raw": "bytea",
    "look_ups": "bytea",
    "api": "text",
    "origin": "bytea",
}
OBSERVATION: Columns = {
    "id": "bigint",
    "state": "text",
    "after_seq": "bigint",
    "last_seq": "bigint",
    "chain": "bytea",
    "text": "bytea",
    "tokens": "bigint",
    "source_tokens": "bigint",
    "at": _FLOAT,
    "task": "bytea",
    "suggestion": "bytea",
    "title": "bytea",
    "kind": "text",
    "model": "bytea",
    "parts": "bytea",
    "sources": "text",
    "depth": "bigint",
    "replaces": "bigint",
}
REFLECTION: Columns = {
    "generation": "bigint",
    "sources": "text",
    "text": "bytea",
    "tokens": "bigint",
    "source_tokens": "bigint",
    "at": _FLOAT,
    "task": "bytea",
    "suggestion": "bytea",
    "model": "bytea",
}
ENTRY: Columns = {"position": "bigint", "observation_id": "bigint"}
DATA_KEY: Columns = {"id": "bytea", "master": "text", "wrapped": "bytea"}
EVENT: Columns = {"at": _FLOAT, "type": "text", "data": "text", "sealed": "bytea"}


def list_names(columns: Iterable[str], prefix: str = "") -> str:
    return ", ".join(f"{prefix}{name}" for name in columns)


def list_parameters(columns: Columns, first: int) -> str:
    """Return `$first::type, …`, one for each column."""
    return ", ".join(f"${number}::{type_}" for number, type_ in enumerate(columns.values(), first))


def write_unnest(columns: Columns, first: int, alias: str) -> str:
    """Return a source of rows that takes an array for each column, from `$first` on."""
    arrays = ", ".join(
        f"${number}::{type_}[]" for number, type_ in enumerate(columns.values(), first)
    )
    return f"unnest({arrays}) WITH ORDINALITY AS {alias} ({list_names(columns)}, place)"


def write_values(columns: Columns, first: int, count: int, alias: str) -> str:
    """Return a source of `count` rows that takes a parameter for each value, row by row, from
    `$first` on."""
    width = len(columns)
    rows = ", ".join(
        f"({list_parameters(columns, first + place * width)})" for place in range(count)
    )
    return f"(VALUES {rows}) AS {alias} ({list_names(columns)})"


@cache
def write_insert(table: str, columns: tuple[tuple[str, str], ...]) -> str:
    """Return the statement that inserts rows in their order, and takes an array for each column."""
    names = list_names(dict(columns))
    rows = write_unnest(dict(columns), 1, "new").replace(", place)", ", row_number)")
    return f"INSERT INTO om.{table} ({names}) SELECT {names} FROM {rows} ORDER BY row_number"


def transpose(rows: Sequence[Sequence[Any]], columns: Columns) -> list[list[Any]]:
    """Return the rows as one list for each column."""
    if not rows:
        return [[] for _ in columns]
    return [list(values) for values in zip(*rows, strict=True)]
