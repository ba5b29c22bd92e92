"""Implementations of the ports of broker.services."""
