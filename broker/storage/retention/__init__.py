"""Retention: expired data, and deleted topics."""
