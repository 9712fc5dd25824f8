"""All of this machine's pip settings, from files and environment, as one pip.conf on stdout.

`python -m tests.image.pip_settings BUNDLE`: the file of certificates that pip shall trust, if it
is there.
"""

from __future__ import annotations

import ast
import configparser
import subprocess
import sys
from pathlib import Path


def merged(listed: str, bundle: str | None) -> configparser.RawConfigParser:
    """The lines of `pip config list`, `section.key='value'`, later ones over earlier ones."""
    settings = configparser.RawConfigParser()
    settings.add_section("global")
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        section = "global" if section == ":env:" else section
        if not settings.has_section(section):
            settings.add_section(section)
        settings.set(section, key, ast.literal_eval(value).replace("\n", "\n\t"))
    if bundle:
        settings.set("global", "cert", bundle)
    return settings


def main(bundle: str) -> None:
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    merged(listed, bundle if Path(bundle).is_file() else None).write(sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
