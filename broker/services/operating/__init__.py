"""What operators do: topics, groups, dead letters, transactions in doubt, look-ups."""
