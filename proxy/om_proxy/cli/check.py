"""`om-proxy check`: what the settings come to for a model, and what needs attention."""

from __future__ import annotations

import argparse
import os

from om_proxy.cli.exit_status import DONE
from om_proxy.cli.terminal import print_report
from om_proxy.doctor.models import missing_credentials, model_warnings
from om_proxy.settings import list_warnings, load, render_settings, render_summary


def run(options: argparse.Namespace) -> int:
    """Print the settings in a screen of lines, with `--all` each of them, and the warnings last."""
    settings, whose = load(options.config), (options.model, options.resource)
    effective = settings.effective(*whose)
    lines = render_summary(settings, *whose)
    if options.all:
        lines += ["", *render_settings(settings, *whose)]
    else:
        lines += ["every setting and where it comes from: om-proxy check --all"]
    found = [
        *missing_credentials(settings, effective, os.environ),
        *list_warnings(settings, *whose),
        *model_warnings(effective, options.model),
    ]
    lines += (
        ["", *(f"warning: {text}" for text in found)] if found else ["", "nothing needs attention"]
    )
    print_report(lines)
    return DONE
