"""`om-proxy notes observe`: have messages observed now, below the thresholds too."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable

from om_proxy.cli.answers import print_heading, print_json, render_count
from om_proxy.cli.exit_status import DONE
from om_proxy.cli.notes import print_entry_text
from om_proxy.cli.progress import show_progress
from om_proxy.cli.store_command import LocalApi, run_with_api
from om_proxy.cli.thread_choice import find_thread
from om_proxy.edge.admin.requests import AdminCall
from om_proxy.edge.admin.routes.memory_work import ObserveRequest, WorkAnswer, observe
from om_proxy.edge.admin.services import AdminServices
from om_proxy.errors import BadRequest, UsageError

# until the work has ended: the process ends with the command, and `background.call_timeout` bounds
# each call of a memory model
NO_LIMIT_S = 1e6
NO_MODEL_MESSAGE = (
    "memory.model is auto or inherit, and clients' credentials are not stored: set memory.model, or "
    "upstream[].api_key, or ask the running server by its admin API"
)


def run(options: argparse.Namespace) -> int:
    """Have messages observed, and print the notes."""
    return run_with_api(options, print_observation)


async def print_observation(api: LocalApi, options: argparse.Namespace) -> int:
    body = ObserveRequest(wait=NO_LIMIT_S, all=options.all)
    with show_progress("the memory model reads the messages"):
        answer = await ask_for_work(api, options, observe, body)
    print_json(answer) if options.json else print_work(answer)
    return DONE


async def ask_for_work(
    api: LocalApi,
    options: argparse.Namespace,
    handler: Callable[[AdminServices, AdminCall], Awaitable[WorkAnswer]],
    body: object,
) -> WorkAnswer:
    """Ask for work on the thread that the options name, and wait for its end."""
    key = await find_thread(api.store, options)
    try:
        return await api.ask_about(handler, key, body=body, expected_version=options.if_version)
    except BadRequest as exc:
        if exc.code == "om_no_model":
            raise UsageError(NO_MODEL_MESSAGE) from exc
        raise


def print_work(answer: WorkAnswer) -> None:
    """Print the notes that the work has made."""
    print_heading(f"made {render_count(len(answer.notes), 'note')}")
    for note in answer.notes:
        print_entry_text(note)
