"""Connectors: what carries messages between halfmq and other systems, exactly once."""
