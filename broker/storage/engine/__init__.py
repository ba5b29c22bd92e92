"""Database connections, sessions and threads, and batching of waiting work into one database transaction."""
