"""`om-proxy notes reflect`: have all notes condensed now."""

from __future__ import annotations

import argparse

from om_proxy.cli.answers import print_json
from om_proxy.cli.exit_status import DONE
from om_proxy.cli.observe import NO_LIMIT_S, ask_for_work, print_work
from om_proxy.cli.progress import show_progress
from om_proxy.cli.store_command import LocalApi, run_with_api
from om_proxy.edge.admin.routes.memory_work import (
    MAX_INSTRUCTION_CHARS,
    ReflectRequest,
    reflect,
)
from om_proxy.errors import UsageError


def run(options: argparse.Namespace) -> int:
    """Have the notes condensed, and print the result."""
    if len(options.instruction or "") > MAX_INSTRUCTION_CHARS:
        raise UsageError(f"--instruction has at most {MAX_INSTRUCTION_CHARS} characters")
    return run_with_api(options, print_reflection)


async def print_reflection(api: LocalApi, options: argparse.Namespace) -> int:
    body = ReflectRequest(wait=NO_LIMIT_S, instruction=options.instruction)
    with show_progress("the memory model condenses the notes"):
        answer = await ask_for_work(api, options, reflect, body)
    print_json(answer) if options.json else print_work(answer)
    return DONE
