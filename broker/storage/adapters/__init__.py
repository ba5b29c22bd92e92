"""What implements the ports of broker.services."""
