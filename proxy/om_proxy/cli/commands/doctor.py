"""`om-proxy doctor`: find what does not work."""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path

from msgspec import Struct

from om_proxy.cli.answers import print_json, print_report, show_progress
from om_proxy.cli.doctor.clients import examine_client
from om_proxy.cli.doctor.report import examine, render_findings
from om_proxy.cli.doctor.upstreams import Finding
from om_proxy.cli.exit_status import DONE, NOT_WORKING
from om_proxy.cli.visible_text import escape_text
from om_proxy.settings.config import load


class DoctorReport(Struct, frozen=True):
    """The report that `--json` prints."""

    items: list[Finding]


def run(options: argparse.Namespace) -> int:
    """Examine servers, credentials and threads, and print the findings. Return DONE if everything
    works, else NOT_WORKING."""
    settings = load(options.config)
    if options.client is not None:
        return print_findings(asyncio.run(examine_client(options.client, settings)), options)
    if settings.storage.file and not options.json:
        print(f"examining {Path(settings.storage.file).resolve()}", flush=True)
    with show_progress("asking the model servers, reading the store"):
        findings = asyncio.run(
            examine(
                settings,
                model=options.model,
                call=options.call,
                revive=options.revive,
                environ=os.environ,
                tenant=options.tenant,
                resource=options.resource,
            )
        )
    return print_findings(findings, options)


def print_findings(findings: list[Finding], options: argparse.Namespace) -> int:
    if options.json:
        print_json(DoctorReport(items=findings))
    else:
        print_report([escape_text(line) for line in render_findings(findings)])
    return DONE if all(finding.works for finding in findings) else NOT_WORKING
