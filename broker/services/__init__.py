"""What the broker does, over ports: transactions, sending, delivery, topics and groups, and the operators' part."""
