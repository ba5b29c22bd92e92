"""What clients show to brokers that want to know who they are."""

from __future__ import annotations

from producer_sdk import BearerToken, Connection


def connection_of(endpoint: str, token: str) -> Connection:
    """The connection of a client; without a token it shows nothing."""
    return Connection(endpoint, auth=BearerToken(token, without_tls=True) if token else None)
