"""Show a thread's notes, or one entry with what it was made from."""

from __future__ import annotations

import argparse

from om_proxy.cli.answers import (
    print_heading,
    print_json,
    print_table,
    print_text,
    render_number,
    render_time,
)
from om_proxy.cli.commands.messages import render_api
from om_proxy.cli.exit_status import DONE
from om_proxy.cli.store_command import LocalApi
from om_proxy.cli.thread_choice import find_thread
from om_proxy.management.api.routes.notes import (
    Chunk,
    Entry,
    EntryProvenance,
    GenerationList,
    Notes,
    SourceMessage,
    list_generations,
    show_entry,
    show_notes,
)
from om_proxy.wire.apis.message_parts import summarize_message

GENERATION_COLUMNS = ("generation", "entries", "condensed", "tokens", "newest")


async def show(api: LocalApi, options: argparse.Namespace) -> int:
    """Print notes, one entry, or the list of generations."""
    key = await find_thread(api.store, options)
    if options.generations:
        generations = await api.ask(list_generations, options, key=key)
        print_json(generations) if options.json else print_generations(generations)
    elif options.id is not None:
        entry = await api.ask(show_entry, options, key=key)
        print_json(entry) if options.json else print_provenance(entry)
    else:
        notes = await api.ask(show_notes, options, key=key)
        print_json(notes) if options.json else print_log(notes)
    return DONE


def print_log(notes: Notes) -> None:
    """Print the pinned notes, the active ones, then those that wait."""
    age = "current" if notes.is_current else "older"
    print_heading(f"generation {notes.generation} ({age}), through message {notes.coverage}")
    for pin in notes.pins:
        print_text("")
        print_heading(f"pinned [{pin.id}], {render_time(pin.at)}, by {pin.by}")
        print_text(pin.text)
    if not notes.log:
        print_text("\nno active notes yet")
    for entry in notes.log:
        print_entry_text(entry)
    for chunk in notes.chunks:
        print_entry_text(chunk)
    if reflection := notes.reflection:
        sources = ", ".join(map(str, reflection.sources))
        print_text("")
        print_heading(
            f"reflection that waits to replace {sources}, {render_number(reflection.tokens)} tokens"
        )
        print_text(reflection.text)
    for name, text in (("current task", notes.task), ("suggestion", notes.suggestion)):
        if text:
            print_text("")
            print_heading(name)
            print_text(text)


def print_entry_text(entry: Entry) -> None:
    """Print an entry or a chunk below a blank line."""
    name = entry.kind
    if isinstance(entry, Chunk):
        name = f"chunk that {'the next request activates' if entry.activates else 'waits'}"
    print_text("")
    print_heading(
        f"[{entry.id}] {name}, {render_time(entry.at)}, {render_number(entry.tokens)} tokens from "
        f"{render_number(entry.source_tokens)}, by {entry.model}"
    )
    print_text(entry.text)


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
    print_text("")
    print_heading(
        f"{message.seq} {speaker}{render_api(message.api)}, {render_time(message.at)}, "
        f"{render_number(message.tokens)} tokens"
    )
    print_text("\n".join(texts))


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
