"""`om-proxy worker`: do the background work of a shared store until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse

from om_proxy.cli.serve import run_until_signal


def run(options: argparse.Namespace) -> int:
    """Work until SIGTERM or SIGINT, give back what is under way, and return the exit status."""
    return run_until_signal(options, is_worker=True)
