"""`om-proxy notes edit`: give a note other words, by an option or in an editor."""

from __future__ import annotations

import argparse
import sys

import click

from om_proxy.cli.answers import print_json, print_text
from om_proxy.cli.exit_status import DECLINED, DONE
from om_proxy.cli.store_command import LocalApi, print_error, run_with_api
from om_proxy.cli.thread_choice import find_thread
from om_proxy.edge.admin.requests import NoteText
from om_proxy.edge.admin.routes.notes import EntryQuery, show_entry
from om_proxy.edge.admin.routes.steering import edit_chunk, edit_entry
from om_proxy.errors import UsageError
from om_proxy.memory.model import Key


def run(options: argparse.Namespace) -> int:
    """Change the note's words. Without --text, the words come from stdin or from an editor."""
    return run_with_api(options, edit)


async def edit(api: LocalApi, options: argparse.Namespace) -> int:
    key = await find_thread(api.store, options)
    text = options.text if options.text is not None else await read_text(api, key, options)
    if text is None:
        print_error("nothing was changed")
        return DECLINED
    change = await api.ask_about(
        edit_chunk if options.chunk else edit_entry,
        key,
        entry_id=options.id,
        body=NoteText(text=text.rstrip("\n")),
        expected_version=options.if_version,
    )
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
    query = EntryQuery(resource=key.resource, chunk=options.chunk)
    current = await api.ask_about(show_entry, key, query, entry_id=options.id)
    text = current.entry.text or ""
    edited = open_editor(text)
    return None if edited is None or edited.rstrip("\n") == text.rstrip("\n") else edited


def open_editor(text: str) -> str | None:
    """Let the person change the text in `$VISUAL`, `$EDITOR` or the system's editor. Return None if
    the file was not saved."""
    try:
        return click.edit(text, extension=".md")
    except click.ClickException as exc:
        raise UsageError(f"{exc.message}; set EDITOR, or give --text") from exc
