"""Say how an extra of this package is installed."""

from __future__ import annotations


def render_install_command(extra: str) -> str:
    """Return the command for an installed package, then the one for a clone."""
    return (
        f"pip install 'observational-memory-proxy[{extra}]', or in a clone pip install '.[{extra}]'"
    )
