"""`om-proxy init`: write the annotated configuration file, which ships with the program as
`config/om-proxy.yaml` of the project."""

from __future__ import annotations

import argparse
from pathlib import Path

from om_proxy.cli.exit_status import DONE
from om_proxy.common.errors import ConfigError, UsageError
from om_proxy.settings.config.annotations import (
    DISTRIBUTION_NAME,
    FILE_NAME,
    find_annotated_file,
)


def run(options: argparse.Namespace) -> int:
    """Write the file. Never overwrite a file, which somebody may have edited."""
    text = read_annotated_file()
    path = Path(options.path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as exc:
        raise UsageError(f"{path} exists already: edit it, or name another path") from exc
    except OSError as exc:
        raise UsageError(
            f"{path} cannot be written ({exc.strerror}): name a path where you may write"
        ) from exc
    print(
        f"wrote {path}; every setting in it has its default. "
        f"Edit it, then: om-proxy check --config {path}"
    )
    return DONE


def read_annotated_file() -> str:
    """Return the file's text. Raises ConfigError if the file is not installed."""
    path = find_annotated_file()
    if path is None:
        raise ConfigError(f"this installation lacks {FILE_NAME}: install {DISTRIBUTION_NAME} again")
    return path.read_text(encoding="utf-8")
