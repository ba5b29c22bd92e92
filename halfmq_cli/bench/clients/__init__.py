"""The clients of a benchmark, each a process of its own."""
