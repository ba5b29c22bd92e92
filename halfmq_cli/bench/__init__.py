"""`halfmq bench`: rates and latencies, next to a floor measured in the same run."""
