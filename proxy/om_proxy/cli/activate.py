"""`om-proxy notes activate`: make the chunks that wait active."""

from __future__ import annotations

import argparse

from om_proxy.cli.answers import print_json, print_text, render_count, render_number
from om_proxy.cli.exit_status import DONE
from om_proxy.cli.store_command import LocalApi, run_with_api
from om_proxy.cli.thread_choice import find_thread
from om_proxy.edge.admin.routes import memory_work
from om_proxy.edge.admin.routes.memory_work import ActivationAnswer


def run(options: argparse.Namespace) -> int:
    """Make them active, and print what the next prompt begins with."""
    return run_with_api(options, activate)


async def activate(api: LocalApi, options: argparse.Namespace) -> int:
    key = await find_thread(api.store, options)
    answer = await api.ask_about(memory_work.activate, key, expected_version=options.if_version)
    if options.json:
        print_json(answer)
    else:
        print_text(describe_activation(answer))
    return DONE


def describe_activation(answer: ActivationAnswer) -> str:
    return (
        f"{render_count(len(answer.activated), 'chunk')} became active: "
        f"{render_number(answer.log_tokens)} tokens of notes, "
        f"{render_number(answer.pending_tokens)} of messages"
    )
