"""Consuming: subscriptions under leases, receipts, reading by offset."""
