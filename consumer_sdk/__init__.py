"""halfmq: consumer_sdk."""
