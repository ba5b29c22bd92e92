"""The clients of a benchmark, each a separate process."""
