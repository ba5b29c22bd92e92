"""Messages under leases as a table: for jobs that share a consumer group with ordinary consumers."""
