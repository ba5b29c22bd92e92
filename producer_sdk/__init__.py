"""halfmq: producer_sdk."""
