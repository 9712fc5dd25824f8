"""Serve as `om-proxy` does on a host of its own: with another clock, with shorter leases, so that a run
need not wait for long ones, or with a fault planted.

Usage: python -m tests.e2e.replicas.host CLOCK_OFFSET_S LEASE_S FAULT serve --config om-proxy.yaml
LEASE_S 0: as long as they are; FAULT `none`: none
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import time
from functools import partial


def shift_clock(offset_s: float) -> None:
    """Let this host's clock be wrong. Call it before the program is imported: its parts keep the
    clock they are given."""
    true_clock = time.time

    def read(clock: object) -> float:
        return true_clock() + offset_s

    time.time = partial(read, None)


def main(arguments: list[str]) -> int:
    offset_s, lease_s, fault, *command = arguments
    faulthandler.register(signal.SIGUSR1)  # tells what it is doing when it does not answer
    shift_clock(float(offset_s))
    # imported now: see `shift_clock`
    from om_proxy import cli
    from om_proxy.engine.background import leases, scheduler
    from tests.e2e.replicas.planted import FAULTS

    if float(lease_s):
        leases.LEASE_S = scheduler.LEASE_S = float(lease_s)
    if fault != "none":
        FAULTS[fault].plant()
    return cli.main(command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
