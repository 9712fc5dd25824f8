"""Several processes on one PostgreSQL, killed while clients talk, and what may be said of it."""
