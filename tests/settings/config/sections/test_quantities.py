"""Durations, sizes, ratios and tokens as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.settings.config.sections import quantities as q


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("20s", 20.0),
        ("5m", 300.0),
        ("1.5h", 5_400.0),
        ("1d", 86_400.0),
        (" 10 s ", 10.0),
        (2.5, 2.5),
    ],
)
def test_duration(text: object, seconds: float) -> None:
    """Each unit of a duration."""
    assert q.parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "20",
        "",
        "s",
        "-1s",
        "0s",
        "5 weeks",
        "1e3s",
        "٣s",
        None,
        True,
        float("nan"),
        [],
        "5M",
        "9" * 400 + "s",
    ],
)
def test_no_duration(text: object) -> None:
    """A number without a unit is refused: it could mean anything."""
    with pytest.raises(ValueError, match="duration"):
        q.parse_duration(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("64MiB", 67_108_864),
        ("32KiB", 32_768),
        ("1 GiB", 2**30),
        ("100", 100),
        ("5MB", 5_000_000),
        (7, 7),
    ],
)
def test_size(text: object, count: int) -> None:
    """Binary and decimal units, and plain bytes."""
    assert q.parse_size(text) == count


@pytest.mark.parametrize(
    "text", ["", "MiB", "0", "-1KiB", "64mib", "64 apples", "Gi", "9" * 400, None, False, 0.5]
)
def test_no_size(text: object) -> None:
    """A text that is not a size is refused with the rule."""
    with pytest.raises(ValueError, match="size"):
        q.parse_size(text)


@given(st.integers(1, 10**9))
def test_written_sizes_read_back(count: int) -> None:
    """A size that `check` prints is valid in the file."""
    assert q.parse_size(q.render_size(count)) == count


@given(st.integers(1, 10**9))
def test_written_durations_read_back(milliseconds: int) -> None:
    """A duration that `check` prints is valid in the file."""
    assert q.parse_duration(q.render_duration(milliseconds / 1_000)) == pytest.approx(
        milliseconds / 1_000, rel=1e-5
    )


@pytest.mark.parametrize(
    ("value", "meant"),
    [("off", None), (False, None), (None, None), ("auto", "auto"), ("5m", 300.0), (300.0, 300.0)],
)
def test_idle(value: object, meant: object) -> None:
    """Off in every spelling, auto, or a duration."""
    assert q.parse_duration_or_auto(value) == meant


@pytest.mark.parametrize(
    ("read", "value", "meant"),
    [
        (q.parse_share_or_tokens, "0.2", 0.2),
        (q.parse_share_or_tokens, "6000", 6_000),
        (q.parse_share_or_tokens, False, False),
        (q.parse_share_or_tokens, "off", False),
        (q.parse_tokens_or_all, "0", 0),
        (q.parse_tokens_or_all, "false", False),
        (q.parse_share_removed_or_tokens_kept, "1", 1.0),
        (q.parse_share_removed_or_tokens_kept, "1000", 1_000.0),
        (q.parse_multiple_or_tokens, "1", 1.0),
        (q.parse_multiple_or_tokens, "36000", 36_000.0),
    ],
)
def test_ratio_or_tokens(read: object, value: object, meant: object) -> None:
    """A number below the bound is a ratio, a number above it is tokens, and 0 tokens is not off."""
    assert callable(read)
    result = read(value)
    assert result == meant
    assert isinstance(result, bool) == isinstance(meant, bool)


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (q.parse_share_or_tokens, "0"),
        (q.parse_share_or_tokens, "-0.1"),
        (q.parse_share_or_tokens, "1.5"),
        (q.parse_share_or_tokens, True),
        (q.parse_share_or_tokens, "nan"),
        (q.parse_tokens_or_all, "-1"),
        (q.parse_tokens_or_all, "1.5"),
        (q.parse_tokens_or_all, "inf"),
        (q.parse_share_removed_or_tokens_kept, "0"),
        (q.parse_share_removed_or_tokens_kept, "1.01"),
        (q.parse_share_removed_or_tokens_kept, "999"),
        (q.parse_multiple_or_tokens, "0.99"),
        (q.parse_multiple_or_tokens, "many"),
    ],
)
def test_neither_ratio_nor_tokens(read: object, value: object) -> None:
    """A number between the two ranges is refused."""
    assert callable(read)
    with pytest.raises(ValueError, match="must be"):
        read(value)
