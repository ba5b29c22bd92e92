"""Traces of messages through OpenTelemetry."""
