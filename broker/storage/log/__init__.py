"""The log: offsets of released messages; reading, searching, scheduling, recalling; identities and keys."""
