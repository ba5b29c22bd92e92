"""The halfmq broker: half messages, verdicts, check-back and delivery on MySQL, MariaDB or SQLite."""
