"""`om-proxy demo`: play a long conversation with memory and without it. With --keep, show its memory
in the dashboard afterwards. With --serve, run the proxy in front of a scripted model, for any client
to try."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from rich.console import Console

from om_proxy.cli.demo import summary
from om_proxy.cli.demo.play import play_story
from om_proxy.cli.demo.stage import (
    TRIAL_MESSAGE_TOKENS,
    ServedDemo,
    open_unfinished,
    serve_kept,
    serve_trial,
)
from om_proxy.cli.demo.story import load_story
from om_proxy.cli.exit_status import DEMO_FAILED, DONE
from om_proxy.cli.serving import describe_sign_in
from om_proxy.common.errors import OmError
from om_proxy.observability import logs
from om_proxy.testing.loopback import SHUTDOWN_GRACE_S

PIPE_WIDTH_COLUMNS = 110  # if stdout is not a terminal


def run(options: argparse.Namespace) -> int:
    """Play the conversation, or serve the scripted model."""
    try:
        if options.serve:
            return serve(options.port)
        return keep(options) if options.keep else play(options)
    except OmError as exc:
        print(f"om-proxy demo: {exc}", file=sys.stderr)
        return DEMO_FAILED


def serve(port: int) -> int:
    """Serve the scripted model behind the proxy until SIGINT or SIGTERM."""
    logs.configure_log("console", show_thread_names=True)

    def describe(served: ServedDemo) -> str:
        return (
            f"om-proxy with a scripted model on {served.url}/v1\n"
            f"use any model name and any key; memory starts at {TRIAL_MESSAGE_TOKENS} tokens "
            "and is deleted when this program ends\n"
            f"{describe_sign_in(served.sign_in, served.url)}\n"
            f"{describe_commands(served)}\n"
            "so short a conversation costs more than it saves: "
            "om-proxy demo --keep shows a full memory in a dashboard of its own"
        )

    asyncio.run(serve_until_stopped(serve_trial(port), describe))
    return DONE


async def serve_until_stopped(
    server: AbstractAsyncContextManager[ServedDemo], describe: Callable[[ServedDemo], str]
) -> None:
    """Run the server until SIGINT or SIGTERM, and print what `describe` says of it."""
    stopped = asyncio.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signal_number, stopped.set)
    async with server as served:
        print(describe(served), flush=True)
        await stopped.wait()
        wait = f"ending; open requests have {SHUTDOWN_GRACE_S} s"
        print(f"om-proxy demo: {wait}", file=sys.stderr, flush=True)


def describe_commands(served: ServedDemo) -> str:
    """Say how commands in another terminal find the settings in force: the store, the thresholds
    and the scripted models."""
    variable = f"OM_PROXY_CONFIG={shlex.quote(str(served.config))}"
    return f"for commands in another terminal: export {variable}"


def keep(options: argparse.Namespace) -> int:
    """Play the conversation unless the folder holds it, and serve its memory until SIGINT or
    SIGTERM."""
    folder: Path = options.keep
    if not folder.exists():
        with open_unfinished(folder.absolute()) as unfinished:
            if status := play(options, unfinished):
                return status
            unfinished.rename(folder)
    logs.configure_log("off")

    def describe(served: ServedDemo) -> str:
        return (
            f"\nThe memory of this conversation: {served.url}/om/\n"
            f"{describe_sign_in(served.sign_in, served.url)}\n"
            f"{describe_commands(served)}\n"
            f"Ctrl-C ends this. The memory stays in {folder}; the same command shows it again."
        )

    served = serve_kept(load_story(), folder.absolute(), options.port)
    asyncio.run(serve_until_stopped(served, describe))
    return DONE


def play(options: argparse.Namespace, kept_folder: Path | None = None) -> int:
    """Play the conversation, and print the table and its summary on stdout."""
    # log lines would break up the live table, which shows failures itself
    logs.configure_log("off")
    is_width_known = sys.stdout.isatty() or "COLUMNS" in os.environ  # rich reads COLUMNS
    console = Console() if is_width_known else Console(width=PIPE_WIDTH_COLUMNS)
    result = asyncio.run(
        play_story(load_story(), console, pace=options.pace, kept_folder=kept_folder)
    )
    summary.print_summary(console, result, show_prompt=options.show_prompt)
    return DONE
