"""The programs that the demo runs, kills and restarts: each a separate process."""
