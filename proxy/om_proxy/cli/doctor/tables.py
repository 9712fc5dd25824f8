"""Examine the tables that come with other packages: the ranks that count tokens, and the prices of
models."""

from __future__ import annotations

from om_proxy.agents.models import encodings
from om_proxy.agents.models.litellm_files import find_litellm_file
from om_proxy.agents.models.price_list import PRICE_TABLE_FILE
from om_proxy.cli.doctor.upstreams import Finding

MAX_PRICE_TABLE_AGE_DAYS = 180
SECONDS_PER_DAY = 86_400
# some installers give every file one time from before the table was written
EARLIEST_PLAUSIBLE_S = 1_600_000_000.0  # September 2020


def examine_ranks(model: str | None) -> Finding:
    """Examine whether tokens of this model are counted or estimated. Nothing is downloaded."""
    name = encodings.find_encoding_name(model or "")
    if name == encodings.ESTIMATE_NAME:
        return Finding(
            False,
            "token ranks are not on this machine, so tokens are estimated: install litellm again, "
            "or set TIKTOKEN_CACHE_DIR to a folder that has them",
        )
    return Finding(True, f"token ranks {name} are on this machine")


def examine_prices(now: float) -> Finding:
    """Examine how old the price table is. It is at least as old as its installation."""
    file = find_litellm_file(PRICE_TABLE_FILE)
    if file is None:
        return Finding(
            False, "the price table is missing, so no price is known: install litellm again"
        )
    installed_at = file.stat().st_mtime
    if installed_at < EARLIEST_PLAUSIBLE_S:
        return Finding(True, "the price table is there; its age is not known")
    age_days = int((now - installed_at) / SECONDS_PER_DAY)
    if age_days > MAX_PRICE_TABLE_AGE_DAYS:
        return Finding(
            False,
            f"the price table was installed {age_days} days ago, so prices and new models may be "
            "missing: update litellm",
        )
    return Finding(True, f"the price table was installed {max(age_days, 0)} days ago")
