"""`om-proxy read`: read the messages of a thread as the model's tool shows them."""

from __future__ import annotations

import argparse

from om_proxy.cli.answers import print_json, print_text
from om_proxy.cli.exit_status import DONE
from om_proxy.cli.store_command import LocalApi, run_with_api
from om_proxy.cli.thread_choice import find_thread
from om_proxy.edge.admin.routes.recall import RecallBody, recall


def run(options: argparse.Namespace) -> int:
    """Print one page of the messages."""
    return run_with_api(options, print_page)


async def print_page(api: LocalApi, options: argparse.Namespace) -> int:
    key = await find_thread(api.store, options)
    body = RecallBody(mode="messages", cursor=options.cursor, page=options.page)
    answer = await api.ask_about(recall, key, body=body)
    if options.json:
        print_json(answer)
    else:
        print_text(answer.messages)
    return DONE
