"""Half messages, checks and verdicts, and the epochs of sinks."""
