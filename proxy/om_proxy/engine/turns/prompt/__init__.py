"""Build the prompt of a turn from its plan. Start with prompt_builder.py."""
