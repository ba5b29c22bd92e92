"""What consumers do: subscriptions under leases, receipts, reading by offset."""
