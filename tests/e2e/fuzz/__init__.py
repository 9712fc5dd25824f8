"""Requests and replies as nobody would send them."""
