"""Tests of the readers of histories."""
