"""The backend on PostgreSQL: one schema of a database that any number of processes may share."""
