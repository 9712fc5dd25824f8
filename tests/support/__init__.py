"""Helpers for tests of several rooms: servers, clients, counters."""
