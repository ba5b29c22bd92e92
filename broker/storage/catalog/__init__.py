"""Topics and queues, and their cache."""
