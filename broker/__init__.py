"""halfmq: broker."""
