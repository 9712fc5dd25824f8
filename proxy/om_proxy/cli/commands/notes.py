"""Show the notes of a thread, correct them, or have a memory model write them."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from om_proxy.cli.answers import (
    confirm,
    print_fields,
    print_heading,
    print_json,
    print_section,
    print_table,
    print_text,
    render_count,
    render_number,
    render_time,
    show_progress,
)
from om_proxy.cli.commands.threads import render_api, render_status
from om_proxy.cli.exit_status import DECLINED, DONE
from om_proxy.cli.store_command import LocalApi, ask_and_print, print_error, read_options
from om_proxy.cli.thread_choice import find_thread
from om_proxy.common.errors import BadRequest, UsageError
from om_proxy.management.api.admin_call import AnyCall
from om_proxy.management.api.requests import NoteText
from om_proxy.management.api.routes import memory_work, steering
from om_proxy.management.api.routes.generations import GenerationList
from om_proxy.management.api.routes.memory_work import (
    ActivationAnswer,
    ObserveRequest,
    ReflectRequest,
    WorkAnswer,
)
from om_proxy.management.api.routes.notes import (
    Chunk,
    Entry,
    EntryProvenance,
    Notes,
    SourceMessage,
    show_entry,
)
from om_proxy.management.api.routes.steering import ChunkChange, EntryChange, PinList, UndoneNotes
from om_proxy.memory.lifecycle.edits import UndoneChange
from om_proxy.memory.model import Key
from om_proxy.wire.apis.message_parts import summarize_message

GENERATION_COLUMNS = ("generation", "entries", "condensed", "tokens", "newest")
# until the work has ended: the process ends with the command, and `background.call_timeout` bounds
# each call of a memory model
NO_LIMIT_S = 1e6
DEFAULT_EDITOR = "notepad" if sys.platform == "win32" else "vi"
NO_MODEL_MESSAGE = (
    "memory.model is auto or inherit, and clients' credentials are not stored: set memory.model, or "
    "upstream[].api_key, or ask the running server by its admin API"
)


async def show(api: LocalApi, options: argparse.Namespace) -> int:
    """Print notes, one entry, or the list of generations."""
    if options.generations:
        asks = "GET /threads/{thread}/generations"
        return await ask_and_print(asks, print_generations, api, options)
    if options.id is not None:
        asks = "GET /threads/{thread}/observations/{id}"
        return await ask_and_print(asks, print_provenance, api, options)
    asks = "GET /threads/{thread}/observations"
    return await ask_and_print(asks, print_log, api, options)


def print_log(notes: Notes) -> None:
    """Print the pinned notes, the active ones, then those that wait."""
    age = "current" if notes.is_current else "older"
    print_heading(f"generation {notes.generation} ({age}), through message {notes.coverage}")
    for pin in notes.pins:
        print_section(f"pinned [{pin.id}], {render_time(pin.at)}, by {pin.by}", pin.text)
    if not notes.log:
        print_text("\nno active notes yet")
    for entry in notes.log:
        print_entry_text(entry)
    for chunk in notes.chunks:
        print_entry_text(chunk)
    if reflection := notes.reflection:
        sources = ", ".join(map(str, reflection.sources))
        print_section(
            f"reflection that waits to replace {sources}, {render_number(reflection.tokens)} tokens",
            reflection.text,
        )
    for name, text in (("current task", notes.task), ("suggestion", notes.suggestion)):
        if text:
            print_section(name, text)


def print_entry_text(entry: Entry) -> None:
    """Print an entry or a chunk below a blank line."""
    name = entry.kind
    if isinstance(entry, Chunk):
        name = f"chunk that {'the next request activates' if entry.activates else 'waits'}"
    print_section(
        f"[{entry.id}] {name}, {render_time(entry.at)}, {render_number(entry.tokens)} tokens from "
        f"{render_number(entry.source_tokens)}, by {entry.model}",
        entry.text,
    )


def print_provenance(answer: EntryProvenance) -> None:
    """Print an entry, the notes and the messages that it was made from."""
    print_entry_text(answer.entry)
    ranges = ", ".join(f"{covered.first}–{covered.last}" for covered in answer.covers)
    print_text(f"\ncovers messages {ranges or 'of no thread here'}")
    for source in answer.sources:
        print_entry_text(source)
    if not answer.complete:
        print_text("\nsome of the notes that it was made from are no longer stored")
    for message in answer.messages or ():
        print_message(message)
    if answer.messages and not answer.has_all_messages:
        print_text("\nit covers more messages than these")


def print_message(message: SourceMessage) -> None:
    speaker, texts = summarize_message(bytes(message.raw or b""), message.api)
    print_section(
        f"{message.seq} {speaker}{render_api(message.api)}, {render_time(message.at)}, "
        f"{render_number(message.tokens)} tokens",
        "\n".join(texts),
    )


def print_generations(answer: GenerationList) -> None:
    rows = (
        (
            f"{generation.number}{' (current)' if generation.is_current else ''}",
            render_number(generation.entries),
            render_number(generation.reflections),
            render_number(generation.tokens),
            render_time(generation.newest_at),
        )
        for generation in answer.items
    )
    print_table(GENERATION_COLUMNS, rows)


async def edit(api: LocalApi, options: argparse.Namespace) -> int:
    """Change the note's words. Without --text, the words come from stdin or from an editor."""
    key = await find_thread(api.store, options)
    text = options.text if options.text is not None else await read_text(api, key, options)
    if text is None:
        print_error("nothing was changed")
        return DECLINED
    handler = steering.edit_chunk if options.chunk else steering.edit_entry
    change = await api.ask(handler, options, key=key, body=NoteText(text=text.rstrip("\n")))
    if options.json:
        print_json(change)
    else:
        print_text("changed; om-proxy notes undo takes it back")
    return DONE


async def read_text(api: LocalApi, key: Key, options: argparse.Namespace) -> str | None:
    """Read the new words from stdin or, on a terminal, from an editor; None if they were not
    saved."""
    if not sys.stdin.isatty():
        piped = sys.stdin.read()
        if not piped.strip():
            raise UsageError(
                "standard input is empty and no terminal: use --text, or pipe the new words"
            )
        return piped
    current = await api.ask(show_entry, options, key=key)
    text = current.entry.text or ""
    edited = open_editor(text)
    return None if edited.rstrip("\n") == text.rstrip("\n") else edited


def open_editor(text: str) -> str:
    """Let the person change the text in `$VISUAL`, `$EDITOR` or the system's editor. Return what
    they saved, or the text as it was."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or DEFAULT_EDITOR
    with tempfile.TemporaryDirectory(prefix="om-proxy-") as folder:  # only its owner may read it
        file = Path(folder, "note.md")
        file.write_text(text, encoding="utf-8")
        try:
            subprocess.run([*shlex.split(editor), str(file)], check=True)  # noqa: S603 - the person chose the program
        except (OSError, ValueError, subprocess.CalledProcessError) as exc:
            raise UsageError(f"the editor {editor} failed; set EDITOR, or give --text") from exc
        return file.read_text(encoding="utf-8")


async def withdraw(api: LocalApi, options: argparse.Namespace) -> int:
    """Withdraw an entry, or drop a chunk."""
    if options.chunk:
        asks = "DELETE /threads/{thread}/chunks/{id}"
        return await ask_and_print(asks, print_dropped, api, options)
    asks = "DELETE /threads/{thread}/observations/{id}"
    return await ask_and_print(asks, print_withdrawal, api, options)


def print_dropped(dropped: ChunkChange) -> None:
    waiting = len(dropped.chunks)
    print_text(f"dropped; {waiting} chunks wait, and the model reads the messages again")


def print_withdrawal(change: EntryChange) -> None:
    if change.erased is None:
        print_text("withdrawn; om-proxy notes undo takes it back")
    else:
        print_text(f"withdrawn and erased, also in {change.erased.observations} older entries")


async def undo(api: LocalApi, options: argparse.Namespace) -> int:
    """Take the change back, and print what that was and the state of the thread. The command asks
    before it takes back a reflection, which no person made, unless --yes is given."""
    key = await find_thread(api.store, options)
    if not options.yes:
        editor = api.services.note_editor
        memory, change = await editor.find_newest_change(key, expected_version=options.if_version)
        if change.kind == "reflection" and not may_take_back(change):
            print_error("nothing was changed")
            return DECLINED
        options.if_version = memory.revision  # of the change that may be taken back
    status = await api.ask(steering.undo, options, key=key)
    if options.json:
        print_json(status)
    else:
        print_fields([("taken back", render_undone(status.undone)), *render_status(status)])
    return DONE


def may_take_back(reflection: UndoneChange) -> bool:
    """Ask on the terminal. Raise UsageError if there is none."""
    change = (
        "the newest change is a reflection, which no person made: "
        f"{render_notes(reflection.restored)} would stand again in place of note {reflection.gone}"
    )
    if not sys.stdin.isatty():
        raise UsageError(f"{change}; to take it back, add --yes")
    return confirm(f"{change}. Take it back?")


def render_undone(undone: UndoneNotes) -> str:
    """Describe the change, and which notes stand again."""
    article = "an" if undone.kind == "edit" else "a"
    stand = "stands" if len(undone.restored) == 1 else "stand"
    notes = render_notes(undone.restored)
    return f"{article} {undone.kind}: {notes} {stand} again in place of note {undone.gone}"


def render_notes(ids: Sequence[int]) -> str:
    return f"{'note' if len(ids) == 1 else 'notes'} {', '.join(map(str, ids))}"


async def observe(api: LocalApi, options: argparse.Namespace) -> int:
    """Have messages observed, and print the notes."""
    said = "the memory model reads the messages"
    return await have_work_done(api, options, memory_work.observe, ObserveRequest, said)


async def reflect(api: LocalApi, options: argparse.Namespace) -> int:
    """Have all notes condensed, and print the result."""
    said = "the memory model condenses the notes"
    return await have_work_done(api, options, memory_work.reflect, ReflectRequest, said)


async def have_work_done(
    api: LocalApi,
    options: argparse.Namespace,
    handler: Callable[[AnyCall], Awaitable[WorkAnswer]],
    body_type: type[ObserveRequest] | type[ReflectRequest],
    said: str,
) -> int:
    """Ask for work on the thread that the options name, and print the notes that it has made."""
    key = await find_thread(api.store, options)
    body = replace(read_options(body_type, options), wait=NO_LIMIT_S)
    try:
        with show_progress(said):
            answer = await api.ask(handler, options, key=key, body=body)
    except BadRequest as exc:
        if exc.code == "om_no_model":
            raise UsageError(NO_MODEL_MESSAGE) from exc
        raise
    if options.json:
        print_json(answer)
        return DONE
    print_heading(f"made {render_count(len(answer.notes), 'note')}")
    for note in answer.notes:
        print_entry_text(note)
    return DONE


def print_activation(answer: ActivationAnswer) -> None:
    """Print what the next prompt begins with."""
    print_text(
        f"{render_count(len(answer.activated), 'chunk')} became active: "
        f"{render_number(answer.log_tokens)} tokens of notes, "
        f"{render_number(answer.pending_tokens)} of messages"
    )


def print_pins(answer: PinList) -> None:
    """Print the notes that people pinned."""
    for note in answer.items:
        print_heading(
            f"[{note.id}] {render_time(note.at)}, {render_number(note.tokens)} tokens, by {note.by}"
        )
        print_text(note.text)
    if not answer.items:
        print_error("no note is pinned")
