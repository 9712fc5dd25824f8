"""Hours of load, and what grows."""
