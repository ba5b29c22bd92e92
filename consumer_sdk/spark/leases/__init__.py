"""Leased messages as a table: for jobs that share a consumer group with ordinary consumers."""
