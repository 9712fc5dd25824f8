"""Pass on what happened to memories: as lists, as streams and to webhooks."""
