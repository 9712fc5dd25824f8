"""Run `om-proxy` with leases of two seconds, so that a test need not wait for a crashed process.

Usage: python -m tests.e2e.short_leases serve --worker --config om-proxy.yaml
"""

from __future__ import annotations

import sys

from om_proxy import cli
from om_proxy.engine.background import leases, scheduler

LEASE_S = 2.0

if __name__ == "__main__":
    leases.LEASE_S = scheduler.LEASE_S = LEASE_S
    sys.exit(cli.main(sys.argv[1:]))
