"""Samples of what the database holds, for metrics."""
