"""`om-proxy check`: show the settings in force for a model, and what needs attention."""

from __future__ import annotations

import argparse
import os

from om_proxy.cli.exit_status import DONE
from om_proxy.cli.terminal import print_report
from om_proxy.doctor.models import list_memory_model_warnings, list_missing_credentials
from om_proxy.settings import list_warnings, load, render_settings, render_summary


def run(options: argparse.Namespace) -> int:
    """Print a summary of the settings, with `--all` every setting too, and the warnings last."""
    settings = load(options.config)
    model_and_resource = (options.model, options.resource)
    effective = settings.effective(*model_and_resource)
    lines = render_summary(settings, *model_and_resource)
    if options.all:
        lines += ["", *render_settings(settings, *model_and_resource)]
    else:
        lines += ["every setting and where it comes from: om-proxy check --all"]
    warnings = [
        *list_missing_credentials(settings, effective, os.environ),
        *list_warnings(settings, *model_and_resource),
        *list_memory_model_warnings(effective, options.model),
    ]
    warning_lines = [f"warning: {text}" for text in warnings]
    lines += ["", *(warning_lines or ["nothing needs attention"])]
    print_report(lines)
    return DONE
