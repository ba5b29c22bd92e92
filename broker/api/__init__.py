"""The halfmq.v1 services: convert, call, convert."""
