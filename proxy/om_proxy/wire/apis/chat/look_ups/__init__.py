"""The tool that looks up earlier messages, in requests and replies of chat completions."""
