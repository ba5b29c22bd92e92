"""The broker's use cases, on top of ports: transactions, sending, delivery, topics and groups, administration."""
