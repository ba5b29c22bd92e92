"""The snapshot: rows that are there already, copied in the order of their keys, and joined with the log."""
