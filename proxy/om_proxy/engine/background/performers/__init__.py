"""Performs the decisions about a memory: a performer for each, and what they share."""
