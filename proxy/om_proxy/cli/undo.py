"""`om-proxy notes undo`: take back the newest reflection, edit or withdrawal of a thread's notes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from om_proxy.cli.answers import print_fields, print_json
from om_proxy.cli.exit_status import DECLINED, DONE
from om_proxy.cli.show import render_status
from om_proxy.cli.store_command import LocalApi, print_error, run_with_api
from om_proxy.cli.thread_choice import find_thread
from om_proxy.edge.admin.routes import steering
from om_proxy.edge.admin.routes.steering import UndoneNotes
from om_proxy.errors import UsageError
from om_proxy.memory.lifecycle.undoing import UndoneChange
from om_proxy.memory.model import Key


def run(options: argparse.Namespace) -> int:
    """Take the change back, and print what that was and the state of the thread. The command asks
    before it takes back a reflection, which no person made, unless --yes is given."""
    return run_with_api(options, undo)


async def undo(api: LocalApi, options: argparse.Namespace) -> int:
    key = await find_thread(api.store, options)
    version = options.if_version
    if not options.yes:
        version = await confirm_version(api, key, version)
        if version is None:
            print_error("nothing was changed")
            return DECLINED
    status = await api.ask_about(steering.undo, key, expected_version=version)
    if options.json:
        print_json(status)
    else:
        print_fields([("taken back", render_undone(status.undone)), *render_status(status)])
    return DONE


async def confirm_version(api: LocalApi, key: Key, expected_version: int | None) -> int | None:
    """Return the version of the thread whose newest change may be taken back; None if the operator
    does not want that."""
    editor = api.services.note_editor
    memory, change = await editor.find_newest_change(key, expected_version=expected_version)
    if change.kind == "reflection" and not may_take_back(change):
        return None
    return memory.revision


def may_take_back(reflection: UndoneChange) -> bool:
    """Ask on the terminal. Raise UsageError if there is none."""
    notes = render_notes(reflection.restored)
    change = (
        "the newest change is a reflection, which no person made: "
        f"{notes} would stand again in place of note {reflection.gone}"
    )
    if not sys.stdin.isatty():
        raise UsageError(f"{change}; to take it back, add --yes")
    try:
        answer = input(f"{change}. Take it back? [y/N] ")
    except EOFError:  # Ctrl-D
        return False
    return answer.strip().lower() in ("y", "yes")


def render_undone(undone: UndoneNotes) -> str:
    """Describe the change, and which notes stand again."""
    article = "an" if undone.kind == "edit" else "a"
    stand = "stands" if len(undone.restored) == 1 else "stand"
    notes = render_notes(undone.restored)
    return f"{article} {undone.kind}: {notes} {stand} again in place of note {undone.gone}"


def render_notes(ids: Sequence[int]) -> str:
    return f"{'note' if len(ids) == 1 else 'notes'} {', '.join(map(str, ids))}"
