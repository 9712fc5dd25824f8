"""`om-proxy notes pin`: list the notes that people pinned, or pin, change or remove one."""

from __future__ import annotations

import argparse

from om_proxy.cli.answers import print_heading, print_json, print_text, render_number, render_time
from om_proxy.cli.exit_status import DONE
from om_proxy.cli.store_command import LocalApi, print_error, run_with_api
from om_proxy.cli.thread_choice import find_thread
from om_proxy.edge.admin.requests import NoteText
from om_proxy.edge.admin.routes.pins import (
    PinList,
    PinnedNote,
    add_pin,
    edit_pin,
    list_pins,
    remove_pin,
)
from om_proxy.errors import UsageError
from om_proxy.memory.model import Key


def run(options: argparse.Namespace) -> int:
    """Print the pinned notes, after the change that the options name."""
    is_changed = options.text is not None or options.remove is not None
    if options.edit is not None and options.text is None:
        raise UsageError("--edit needs the new words: om-proxy notes pin THREAD TEXT --edit ID")
    if options.remove is not None and options.text is not None:
        raise UsageError("--remove takes no words")
    if options.if_version is not None and not is_changed:
        raise UsageError("--if-version guards a change: give the words of a note, or --remove")
    return run_with_api(options, pin)


async def pin(api: LocalApi, options: argparse.Namespace) -> int:
    answer = await _ask(api, await find_thread(api.store, options), options)
    if options.json:
        print_json(answer)
        return DONE
    for note in answer.items:
        print_note(note)
    if not answer.items:
        print_error("no note is pinned")
    return DONE


async def _ask(api: LocalApi, key: Key, options: argparse.Namespace) -> PinList:
    version = options.if_version
    if options.remove is not None:
        return await api.ask_about(
            remove_pin, key, entry_id=options.remove, expected_version=version
        )
    if options.text is None:
        return await api.ask_about(list_pins, key)
    body = NoteText(text=options.text)
    if options.edit is not None:
        return await api.ask_about(
            edit_pin, key, body=body, entry_id=options.edit, expected_version=version
        )
    return await api.ask_about(add_pin, key, body=body, expected_version=version)


def print_note(note: PinnedNote) -> None:
    print_heading(
        f"[{note.id}] {render_time(note.at)}, {render_number(note.tokens)} tokens, by {note.by}"
    )
    print_text(note.text)
