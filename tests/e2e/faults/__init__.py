"""Each fault at each place, and what the client sees."""
