"""Limit what the server does at once: requests, bytes of bodies, large work, work of people."""
