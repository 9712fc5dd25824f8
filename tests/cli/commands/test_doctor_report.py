"""What `doctor` finds about token ranks and prices."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from om_proxy.cli.commands.doctor import (
    EARLIEST_PLAUSIBLE_S,
    MAX_PRICE_TABLE_AGE_DAYS,
    SECONDS_PER_DAY,
    examine_prices,
    examine_ranks,
)

NOW = 1.75e9


@pytest.mark.parametrize(
    ("age_days", "works", "said"),
    [
        (0, True, "installed 0 days ago"),
        (MAX_PRICE_TABLE_AGE_DAYS, True, f"{MAX_PRICE_TABLE_AGE_DAYS} days ago"),
        (MAX_PRICE_TABLE_AGE_DAYS + 1, False, "update litellm"),
        ((NOW - EARLIEST_PLAUSIBLE_S) / SECONDS_PER_DAY + 1, True, "age is not known"),
        (-1, True, "installed 0 days ago"),
    ],
)
def test_the_age_of_the_price_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age_days: float, works: bool, said: str
) -> None:
    file = tmp_path / "prices.json"
    file.touch()
    installed_at = NOW - age_days * SECONDS_PER_DAY
    os.utime(file, (installed_at, installed_at))
    monkeypatch.setattr("om_proxy.cli.commands.doctor.find_litellm_file", lambda name: file)
    finding = examine_prices(NOW)
    assert (finding.works, said in finding.text) == (works, True)


def test_no_price_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("om_proxy.cli.commands.doctor.find_litellm_file", lambda name: None)
    finding = examine_prices(NOW)
    assert not finding.works
    assert "install litellm" in finding.text


def test_token_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ranks tokens are estimated, and the report says what to do."""
    assert examine_ranks("gpt-4o").text == "token ranks o200k_base are on this machine"
    monkeypatch.setattr(
        "om_proxy.agents.models.encodings.find_encoding_name", lambda model: "estimate"
    )
    finding = examine_ranks(None)
    assert not finding.works
    assert "TIKTOKEN_CACHE_DIR" in finding.text
