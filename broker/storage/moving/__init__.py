"""Moves topics, groups and sinks from one cell to another: docs/moving-between-cells.md.

Each step is one database transaction in one database, which verifies under a lock how far the move is, so that any
process may repeat any step at any time.
"""
