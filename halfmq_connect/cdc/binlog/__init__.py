"""Reading binary logs: the replication protocol, events, and exact values of rows."""
