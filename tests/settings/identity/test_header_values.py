"""The values of headers: templates, choices and time zones."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.common.errors import BadRequest
from om_proxy.settings.identity.callers import identify
from om_proxy.settings.identity.header_values import read_value
from tests.settings.identity.examples import RULES, SECRET, headers


@pytest.mark.parametrize("name", ["x_om_mode", "x_om_history"])
def test_an_unknown_word_is_refused(name: str) -> None:
    """A misspelt mode must not silently mean the default."""
    with pytest.raises(BadRequest, match="must be one of"):
        identify(headers(x_om_thread="t", **{name: "sometimes"}), RULES, SECRET)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("x-om-mode", ["off\xa0"]),
        ("x-om-history", ["\x85full"]),
        ("x-om-timezone", ["UTC\xa0"]),
        ("x-om-mode", ["", "off"]),
        ("x-om-mode", ["off", ""]),
    ],
)
def test_a_word_that_is_nearly_one_is_refused(name: str, values: list[str]) -> None:
    """Only HTTP's white space is removed, and every value of a header that was sent twice is
    read."""
    sent = headers(x_om_thread="t") + [(name.encode(), value.encode("latin-1")) for value in values]
    with pytest.raises(BadRequest, match=name):
        identify(sent, RULES, SECRET)


@pytest.mark.parametrize(
    ("sent", "zone"),
    [("Europe/Berlin", "Europe/Berlin"), (" UTC ", "UTC"), ("", None), ("{{TIMEZONE}}", None)],
)
def test_timezone(sent: str, zone: str | None) -> None:
    """An IANA name. An empty value or an unfilled template counts as absent."""
    assert identify(headers(x_om_thread="t", x_om_timezone=sent), RULES, SECRET).timezone == zone


@pytest.mark.parametrize(
    "sent",
    [
        "Mars/Olympus",
        "../etc/passwd",
        "/etc/passwd",
        "a\0b",
        "x" * 5_000,
        "a/" * 600 + "a",
        "a/a/a/a",
        "Europe//Berlin",
    ],
)
def test_a_bad_timezone(sent: str) -> None:
    """A name outside the zone table is refused, and is not looked up anywhere else."""
    with pytest.raises(BadRequest, match="IANA") as caught:
        identify(headers(x_om_thread="t", x_om_timezone=sent), RULES, SECRET)
    assert sent not in str(caught.value)


@given(st.text(alphabet="{}a ", max_size=12))
def test_a_template_is_two_pairs_of_braces(value: str) -> None:
    """A template is `{{` and a later `}}`, with any text around and between them."""
    says = value.strip(" \t")
    assert read_value(value) == ("" if re.search(r"\{\{.*\}\}", says) else says)


@pytest.mark.parametrize("value", ["{{" * 30_000, "{{" * 30_000 + "}", "{{{}" * 15_000])
def test_many_braces(value: str) -> None:
    """64 kB of braces once took seven seconds, in which no other request was served. Now it takes a
    thousandth of a second."""
    began = time.process_time()
    assert read_value(value) == value
    assert time.process_time() - began < 1
