"""Show on a terminal that long work goes on. Pipes and logs get none of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from om_proxy.cli.visible_text import escape_line


@contextmanager
def show_progress(text: str) -> Iterator[None]:
    """Show the text with a moving sign on stderr until the block ends, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
    from rich.text import Text  # noqa: PLC0415 - as above: only a terminal needs it

    with Console(stderr=True).status(Text(escape_line(text))):
        yield
