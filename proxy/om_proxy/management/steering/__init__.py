"""Change notes for people, and do the memory work that they ask for."""
