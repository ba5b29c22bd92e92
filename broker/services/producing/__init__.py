"""Producing: half messages, verdicts, answers to checks, ordinary messages, epochs of sinks."""
