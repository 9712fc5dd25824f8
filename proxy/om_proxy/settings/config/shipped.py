"""The annotated configuration file that ships with the program: `config/om-proxy.yaml` of the
project."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from om_proxy.common.errors import ConfigError

DISTRIBUTION_NAME = "observational-memory-proxy"
FILE_NAME = "om-proxy.yaml"


def read_annotated_file() -> str:
    """Return the file's text. Raises ConfigError if the file is not installed."""
    path = find_annotated_file()
    if path is None:
        raise ConfigError(f"this installation lacks {FILE_NAME}: install {DISTRIBUTION_NAME} again")
    return path.read_text(encoding="utf-8")


def find_annotated_file() -> Path | None:
    """Find the file: beside the package in a checkout, else where the wheel put it."""
    in_checkout = Path(__file__).parents[4] / "config" / FILE_NAME
    if in_checkout.is_file():
        return in_checkout
    try:
        installed = files(DISTRIBUTION_NAME) or ()
    except PackageNotFoundError:
        return None
    paths = [Path(str(entry.locate())) for entry in installed if entry.name == FILE_NAME]
    return next((path.resolve() for path in paths if path.is_file()), None)
