"""The log: what is released gets an offset there; reading, finding, scheduling, recalling; identities and keys."""
