"""OpenAI's responses: everything that knows their words."""
