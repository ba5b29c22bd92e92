"""Shared by the gRPC protocols: admission of calls, memory limits, error mapping, and streams."""
