"""Recorded providers: fake servers with the rules of real ones, and every kind of client before them
(docs/clients/servers.md shows what came of it)."""
