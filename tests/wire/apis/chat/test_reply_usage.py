"""The tokens that a completion reports are read in every server's words, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest

from om_proxy.memory.token_prices import Usage
from om_proxy.wire.apis.chat.reply import read_usage


@pytest.mark.parametrize(
    ("reported", "usage"),
    [
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 7,
                "prompt_tokens_details": {"cached_tokens": 64},
            },
            Usage(100, 64, 0, 7),
        ),
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 7,
                "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30},
            },
            Usage(100, 60, 30, 7),
        ),
        (
            {"prompt_tokens": 100, "completion_tokens": 7, "prompt_cache_hit_tokens": 5},
            Usage(100, 5, 0, 7),
        ),
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 7,
                "prompt_tokens_details": {"cached_tokens": 0},
                "cache_read_input_tokens": 40,
                "cache_creation_input_tokens": 50,
            },
            Usage(100, 40, 50, 7),
        ),
        # the parts of an input never exceed it
        (
            {
                "prompt_tokens": 10,
                "cache_read_input_tokens": 90,
                "cache_creation_input_tokens": 90,
            },
            Usage(10, 10, 0, 0),
        ),
        ({"prompt_tokens": 100, "prompt_tokens_details": [1]}, Usage(100)),
        ({"prompt_tokens": 100, "prompt_tokens_details": 7}, Usage(100)),
        # what is no count takes no other member with it
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": "x",
                "prompt_tokens_details": {"cached_tokens": "x", "cache_write_tokens": 4},
                "cache_read_input_tokens": 40,
            },
            Usage(100, 40, 4, 0),
        ),
        (
            {
                "prompt_tokens": 100,
                "prompt_tokens_details": None,
                "cache_read_input_tokens": None,
                "total_tokens": 130,
            },
            Usage(100, 0, 0, 30),
        ),
        ({"prompt_tokens": True, "completion_tokens": 3}, Usage(output_tokens=3)),
        ({"prompt_tokens": -1, "completion_tokens": 10**400}, None),
        ({"prompt_tokens": 1.5, "completion_tokens": "7"}, None),
        ({"total_tokens": 7}, None),
        ({}, None),
        ([1], None),
        (None, None),
    ],
)
def test_usage_is_read(reported: Any, usage: Usage | None) -> None:
    assert read_usage(reported) == usage
