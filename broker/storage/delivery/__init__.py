"""Consumer groups and their progress; leases, receipts, filters, retries and dead letters."""
