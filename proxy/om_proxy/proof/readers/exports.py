"""Exports: JSON arrays of conversations, in a file, a folder or a zip archive. One conversation is
held at a time, so a file may be larger than the memory."""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple
from zipfile import BadZipFile, ZipFile, ZipInfo, is_zipfile

from om_proxy.proof.conversation import (
    UNREADABLE_LINES,
    Call,
    Conversation,
    HistoryError,
    Message,
    Prefix,
    Usage,
)
from om_proxy.proof.readers.records import (
    HEAD_BYTES,
    MAX_LINE_BYTES,
    Head,
    Record,
    parse_record,
    set_times,
)

PART_NAME = re.compile(r"conversations(-\d+)?\.json")
MAX_UNPACKED_BYTES = 4 << 30
PIECE_BYTES = 1 << 20
# what reading a damaged file or member of an archive raises
DAMAGE_ERRORS = (BadZipFile, EOFError, OSError, zlib.error)
LINK_MODE = 0o120000  # of a symbolic link, in the upper half of a member's attributes
EMPTY_CONVERSATIONS = "skipped: empty conversations"
UNREADABLE_CONVERSATIONS = "unreadable conversations"
_JSON_SIGN_PATTERN = re.compile(rb'["{}\[\]]')
_TEXT = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)  # of a string, to its quote


class Entry(NamedTuple):
    """A message of the transcript; of a reply, the model and the usage that its program recorded."""

    message: Mapping[str, Any]
    model: str | None = None
    usage: Usage | None = None


class Chat(NamedTuple):
    """A conversation as its program stored it."""

    id: str
    title: str | None
    began_at: float  # unix seconds: of the first message, if that has no time
    entries: list[Entry]


def read_export(
    path: Path,
    program: str,
    convert: Callable[[Record, Counter[str]], Chat],
    read: Callable[[Path, Counter[str]], Iterator[Record]] | None = None,
) -> Iterator[Conversation]:
    """Yield the conversations of the file, whose records `read` yields; None: `read_parts`. The last
    one has the notices of the whole file too. Raise HistoryError if there is none."""
    held: Conversation | None = None
    file_notices: Counter[str] = Counter()
    for record in (read or read_parts)(path, file_notices):
        notices: Counter[str] = Counter()
        chat = convert(record, notices)
        if not chat.entries:
            file_notices[EMPTY_CONVERSATIONS] += 1
            continue
        if held is not None:
            yield held
        held = create_conversation(program, chat, notices)
    unreadable = file_notices.pop(UNREADABLE_LINES, 0)
    if unreadable:
        file_notices[UNREADABLE_CONVERSATIONS] += unreadable
    file_notices.pop("lines", None)
    if held is None:
        counts = ", ".join(f"{kind}: {count}" for kind, count in sorted(file_notices.items()))
        raise HistoryError(
            f"no conversation of {program} can be read ({counts or 'it holds none'})"
        )
    yield replace(held, notices=Counter(held.notices) + file_notices)


def create_conversation(program: str, chat: Chat, notices: Counter[str]) -> Conversation:
    plain = (entry.message for entry in chat.entries)
    lines = notices.pop("lines", 0)
    messages = tuple(set_times(plain, notices, chat.began_at))
    calls = tuple(_list_calls(chat.entries, messages))
    return Conversation(
        chat.id,
        chat.title or None,
        program,
        messages,
        calls,
        notices,
        lines or len(messages),
    )


def _list_calls(entries: list[Entry], messages: tuple[Message, ...]) -> Iterator[Call]:
    """Yield a call for each reply: all messages before it were sent."""
    for n, (entry, message) in enumerate(zip(entries, messages, strict=True)):
        if n and message["role"] == "assistant":
            asked_at: Any = messages[n - 1]["created_at"]
            replied_at: Any = message["created_at"]
            sent = Prefix(messages, n)
            yield Call(sent, message, asked_at, replied_at, entry.model or "", entry.usage)


def climb(nodes: Mapping[str, Any], leaf: Any, parent_name: str) -> list[Record]:
    """Return the nodes of a tree from its root to this leaf."""
    path: dict[str, Record] = {}
    while leaf not in path and isinstance(node := nodes.get(leaf), dict):
        path[leaf] = node
        leaf = node.get(parent_name)
    return list(reversed(path.values()))


def create_tool_call(call_id: str, name: object, arguments: object) -> Record:
    """Return a call in the form of chat completions. `arguments`: text as it stood, or a value."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": str(name), "arguments": text}}


def name_attachment(kind: str, name: object = None) -> str:
    """Return the text that stands for what a message had beside its text."""
    return f"[{kind}: {name}]" if isinstance(name, str) and name else f"[{kind}]"


# ── files ─────────────────────────────────────────────────────────────────────────────────────────


def peek(head: Head) -> bytes:
    """Return the beginning of the first part of an export."""
    with suppress(HistoryError, *DAMAGE_ERRORS):  # another reader may know the file
        for part in open_parts(head.path):
            return part.read(HEAD_BYTES)
    return b""


def read_parts(path: Path, notices: Counter[str]) -> Iterator[Record]:
    """Yield the conversations of an export, as they are written there."""
    for part in open_parts(path):
        try:
            yield from read_elements(part, notices)
        except DAMAGE_ERRORS as exc:
            raise HistoryError(f"{path} cannot be read: {exc}") from exc


def open_parts(path: Path) -> Iterator[IO[bytes]]:
    """Yield each file of an export, open: the file itself, or those of a folder or an archive that
    have its name. Nothing is unpacked to disk, and no other member is looked at."""
    if path.is_dir():
        paths = sorted(one for one in path.iterdir() if PART_NAME.fullmatch(one.name))
    elif is_zipfile(path):
        yield from _open_members(path)
        return
    else:
        paths = [path]
    for one in paths:
        with one.open("rb") as file:
            yield file


def _open_members(path: Path) -> Iterator[IO[bytes]]:
    try:
        with ZipFile(path) as archive:
            members = [member for member in archive.infolist() if _is_part(member)]
            # no member gives more bytes than it says
            if sum(member.file_size for member in members) > MAX_UNPACKED_BYTES:
                raise HistoryError(f"{path} has more than 4 GB: unpack it, and name its folder")
            for member in sorted(members, key=lambda one: one.filename):
                with archive.open(member) as file:
                    yield file
    except (*DAMAGE_ERRORS, NotImplementedError, RuntimeError, ValueError) as exc:
        raise HistoryError(f"{path} is no archive that can be read: {exc}") from exc


def _is_part(member: ZipInfo) -> bool:
    place = PurePosixPath(member.filename)
    is_link = member.external_attr >> 16 & 0o170000 == LINK_MODE
    return bool(PART_NAME.fullmatch(place.name)) and ".." not in place.parts and not is_link


def read_elements(file: IO[bytes], notices: Counter[str]) -> Iterator[Record]:
    """Yield the objects of a JSON array, or the only object of a file. One above MAX_LINE_BYTES is
    skipped without being held, and so is one that ends with the file."""
    held = bytearray()
    depth = outer_depth = 0  # `outer_depth`: at which an element begins
    begin = 0  # of the element in the piece
    for piece, place, sign in _find_brackets(file):
        if not sign:
            if depth > outer_depth and len(held) <= MAX_LINE_BYTES:
                held += piece[begin:]
            begin = 0
        elif sign in b"[{":
            if depth == 0 and sign == b"[":
                outer_depth = 1
            elif depth == outer_depth:
                held.clear()
                begin = place
            depth += 1
        elif depth:
            depth -= 1
            if depth == outer_depth:
                held += piece[begin : place + 1]
                yield from _parse_element(held, notices)
    if depth > outer_depth:
        notices[UNREADABLE_LINES] += 1


def _find_brackets(file: IO[bytes]) -> Iterator[tuple[bytes, int, bytes]]:
    """Yield each bracket outside of strings, with its piece and its place there; at the end of a
    piece, nothing in its place."""
    in_string = False
    place = 0  # 1 at the beginning of a piece, if a backslash before it hides a character
    while piece := file.read(PIECE_BYTES):
        while place < len(piece):
            if in_string:
                place = _find_string_end(piece, place)
                in_string = piece[place : place + 1] != b'"'
                if in_string:
                    break
                place += 1
            mark = _JSON_SIGN_PATTERN.search(piece, place)
            place = mark.end() if mark else len(piece)
            in_string = mark is not None and mark[0] == b'"'
            if mark and not in_string:
                yield piece, mark.start(), mark[0]
        yield piece, len(piece), b""
        place = len(piece) - place


def _find_string_end(piece: bytes, place: int) -> int:
    """Return where the string ends, or at the end of the piece what belongs to the next one: nothing,
    or a backslash."""
    text = _TEXT.match(piece, place)
    return text.end() if text else place


def _parse_element(held: bytearray, notices: Counter[str]) -> Iterator[Record]:
    if len(held) > MAX_LINE_BYTES:
        notices[UNREADABLE_LINES] += 1
    elif (record := parse_record(bytes(held), notices)) is not None:
        yield record
