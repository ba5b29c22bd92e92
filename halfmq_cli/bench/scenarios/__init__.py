"""What is measured: one file for each `halfmq bench` command."""
