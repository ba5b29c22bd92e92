"""Connecting to a database, sessions and threads on it, and merging what waits into one database transaction."""
