"""`om-proxy doctor`: find what does not work."""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path

from om_proxy.cli.exit_status import DONE, NOT_WORKING
from om_proxy.cli.terminal import print_report
from om_proxy.doctor.report import examine, render_findings
from om_proxy.settings import load


def run(options: argparse.Namespace) -> int:
    """Examine servers, credentials and threads, and print the findings. Return DONE if everything
    works, else NOT_WORKING."""
    settings = load(options.config)
    if settings.storage.file:
        print(f"examining {Path(settings.storage.file).resolve()}", flush=True)
    findings = asyncio.run(
        examine(
            settings,
            model=options.model,
            call=options.call,
            revive=options.revive,
            environ=os.environ,
        )
    )
    print_report(render_findings(findings))
    return DONE if all(finding.works for finding in findings) else NOT_WORKING
