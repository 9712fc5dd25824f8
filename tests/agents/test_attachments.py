"""Inline data in a message's text."""

from __future__ import annotations

import pytest

from om_proxy.agents.attachments import Attachments
from tests.support.weighing import measure_peak_bytes

BYTES = "QUJD" * 1024


@pytest.mark.parametrize(
    "parameters", ["", ";charset=utf-8", ";a;b=1;base64", ";base64=1;base645", ";base64;x"]
)
def test_parameters(parameters: str) -> None:
    """A media type may have any number of parameters, with any names."""
    text = f"seen: data:text/csv{parameters};base64,{BYTES}, and more"
    assert Attachments().render_part(text) == "seen: [text/csv, about 3 kB], and more"


@pytest.mark.parametrize(
    "head", ["data:a/b;base64", "data:a/b;;base64,", "data:a/b;c d;base64,", "data:a;base64,"]
)
def test_no_bytes(head: str) -> None:
    """Other text stays as it is."""
    text = f"{head}{BYTES} or base64,"
    assert Attachments().render_part(text) == text


@pytest.mark.parametrize("parameter", [";a", ";base64"])
def test_parameters_without_end(parameter: str) -> None:
    """Matching many parameters takes no memory. With backtracking it took a hundred bytes a
    character."""
    text = "data:a/b" + parameter * 100_000 + "base64,"
    assert measure_peak_bytes(lambda: Attachments().render_part(text)) < len(text)
