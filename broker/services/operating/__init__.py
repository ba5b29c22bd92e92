"""Administration: topics, groups, dead letters, pending transactions, look-ups."""
