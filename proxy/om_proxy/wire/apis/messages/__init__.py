"""Anthropic's Messages API: a user message may hold several results, each a unit of its own."""
