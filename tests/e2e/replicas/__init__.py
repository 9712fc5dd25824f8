"""Several processes on one store, killed while clients talk, and what may be said of it."""
