"""What doctor says of a memory call."""

from __future__ import annotations

import pytest

from om_proxy.agents.model_access.dialect import write_body
from om_proxy.agents.model_access.llm import Image, Prompt
from om_proxy.cli.doctor.call import describe_left_out
from om_proxy.wire.apis.additions import Addition

FULL = Prompt("system", ("text", Image("https://a/b.png")), 0.3, 1_000, "low")


@pytest.mark.parametrize("addition", Addition)
def test_each_part_of_a_memory_call_that_a_server_refuses_is_named(addition: Addition) -> None:
    """A part of a memory call is what changes its request."""
    is_part = write_body("m", FULL, ~addition) != write_body("m", FULL)
    assert ("left out: " in describe_left_out(addition)) is is_part
