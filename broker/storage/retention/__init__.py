"""Forgetting: what is old, and topics that were deleted."""
