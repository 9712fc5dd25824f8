"""HTTP as clients see it."""
