"""A sample of a test's cases is spread over all of them, and tests without the mark keep theirs."""

from __future__ import annotations

import pytest

from tests.support.long_forms import list_beyond_samples


def make_case(parent: pytest.Collector, name: str, *, sample: int | None = None) -> pytest.Function:
    case: pytest.Function = pytest.Function.from_parent(parent, name=name, callobj=make_case)
    if sample is not None:
        case.add_marker(pytest.mark.sample(sample))
    return case


def test_a_sample_is_spread_over_the_cases(request: pytest.FixtureRequest) -> None:
    parent = request.node.parent
    many = [make_case(parent, f"many[{n}]", sample=3) for n in range(9)]
    few = [make_case(parent, f"few[{n}]", sample=3) for n in range(2)]
    whole = [make_case(parent, f"whole[{n}]") for n in range(4)]
    left_out = list(list_beyond_samples([*many, *few, *whole]))
    assert [case.name for case in left_out] == [f"many[{n}]" for n in (1, 2, 4, 5, 7, 8)]
