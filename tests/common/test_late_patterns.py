"""A pattern that is compiled late finds what another one finds."""

from __future__ import annotations

import re

import pytest

from om_proxy.common.late_patterns import compile_late


def test_nothing_is_compiled_before_it_is_used() -> None:
    """A fault in a pattern shows that it is compiled: at its first use, and at the next one."""
    late = compile_late("(")
    for _ in range(2):
        with pytest.raises(re.error):
            late.search("text")


def test_it_finds_what_others_find() -> None:
    """Texts and bytes, with flags, by each method."""
    late, plain = compile_late("b+", re.IGNORECASE), re.compile("b+", re.IGNORECASE)
    for _ in range(2):
        assert late.sub("-", "aBbc") == plain.sub("-", "aBbc") == "a-c"
        assert late.findall("bab") == plain.findall("bab")
    assert late.pattern == "b+"
    assert compile_late(rb"\d").fullmatch(b"7")
