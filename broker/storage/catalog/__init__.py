"""Topics and queues, and a short memory of them."""
