"""Tests that take long and find what shorter ones find seldom."""

from __future__ import annotations

import os

import pytest

# OM_TEST_LONG=all scripts/test runs them too
IS_LONG = os.environ.get("OM_TEST_LONG") == "all"
long_form = pytest.mark.skipif(not IS_LONG, reason="a long form: OM_TEST_LONG=all runs it")
