"""Kafka: topics of halfmq carried to Kafka and back, exactly once."""
