"""Keeps memories in one SQLite file."""
