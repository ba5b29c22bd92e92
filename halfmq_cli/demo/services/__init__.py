"""The programs that the demo runs, kills and starts again: each a process of its own."""
