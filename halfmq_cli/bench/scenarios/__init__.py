"""The measurements: one file per `halfmq bench` command."""
