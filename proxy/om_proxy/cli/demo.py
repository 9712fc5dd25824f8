"""`om-proxy demo`: play a long conversation with memory and without it. With --serve, run the proxy
in front of a scripted model, for any client to try."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys

from rich.console import Console

from om_proxy.cli.exit_status import DEMO_FAILED, DONE, INTERRUPTED
from om_proxy.demo import summary
from om_proxy.demo.play import play_story
from om_proxy.demo.story import load_story
from om_proxy.demo.trial import TRIAL_MESSAGE_TOKENS, serve_trial
from om_proxy.errors import OmError
from om_proxy.telemetry import logs

PIPE_WIDTH_COLUMNS = 110  # if stdout is not a terminal


def run(options: argparse.Namespace) -> int:
    """Play the conversation, or serve the scripted model."""
    try:
        return serve(options.port) if options.serve else play(options)
    except OmError as exc:
        print(f"om-proxy demo: {exc}", file=sys.stderr)
        return DEMO_FAILED


def serve(port: int) -> int:
    """Serve the scripted model behind the proxy until SIGINT or SIGTERM."""
    logs.configure_log("console", show_thread_names=True)

    async def serve_until_stopped() -> None:
        stopped = asyncio.Event()
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(signal_number, stopped.set)
        async with serve_trial(port) as url:
            print(
                f"om-proxy with a scripted model on {url}/v1\n"
                f"use any model name and any key; memory starts at {TRIAL_MESSAGE_TOKENS} tokens "
                "and is deleted when this program ends",
                flush=True,
            )
            await stopped.wait()

    asyncio.run(serve_until_stopped())
    return DONE


def play(options: argparse.Namespace) -> int:
    """Play the conversation, and print the table and its summary on stdout."""
    # log lines would break up the live table, which shows failures itself
    logs.configure_log("off")
    is_width_known = sys.stdout.isatty() or "COLUMNS" in os.environ  # rich reads COLUMNS
    console = Console() if is_width_known else Console(width=PIPE_WIDTH_COLUMNS)
    try:
        result = asyncio.run(play_story(load_story(), console, pace=options.pace))
    except KeyboardInterrupt:
        return INTERRUPTED
    summary.print_summary(console, result, show_prompt=options.show_prompt)
    return DONE
