"""End connections that are too slow. Start with watchdog.py."""
