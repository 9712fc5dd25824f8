"""This machine's way to its package index, from pip's files and environment, as a pip.conf on stdout.

Settings of another kind, such as a constraint, name files that a build does not have.
`python -m tests.image.pip_settings BUNDLE`: the file of certificates that pip shall trust, if it
is there.
"""

from __future__ import annotations

import ast
import configparser
import subprocess
import sys
from pathlib import Path

WAY_TO_INDEX_KEYS = frozenset(
    {
        "cert",
        "default-timeout",
        "disable-pip-version-check",
        "extra-index-url",
        "find-links",
        "index-url",
        "no-index",
        "proxy",
        "retries",
        "timeout",
        "trusted-host",
    }
)


def merge_settings(listed: str, bundle: str | None) -> configparser.RawConfigParser:
    """Merge the lines of `pip config list`, `section.key='value'`: a later one replaces an earlier.

    Only WAY_TO_INDEX_KEYS are kept. `bundle` is the file of certificates that pip shall trust.
    """
    settings = configparser.RawConfigParser()
    settings.add_section("global")
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        section = "global" if section == ":env:" else section
        if key not in WAY_TO_INDEX_KEYS:
            continue
        if not settings.has_section(section):
            settings.add_section(section)
        settings.set(section, key, ast.literal_eval(value).replace("\n", "\n\t"))
    if bundle:
        settings.set("global", "cert", bundle)
    return settings


def main(bundle: str) -> None:
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    merge_settings(listed, bundle if Path(bundle).is_file() else None).write(sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
