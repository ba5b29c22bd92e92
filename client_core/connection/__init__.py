"""How halfmq's SDKs reach a broker: endpoints, channels with fail-over, retries, streams, the background loop.

Both SDKs are built on this package. It knows the protocol's services, but not how producers and consumers use them.
"""

from __future__ import annotations

from client_core.connection.auth import BearerToken, TokenFile
from client_core.connection.background import BackgroundRunner, EventLoopThread, is_own_cancellation
from client_core.connection.connection import Connection, Endpoint
from client_core.connection.duplex import HEARTBEAT, Duplex
from client_core.connection.endpoints import parse_endpoints
from client_core.connection.link import Broker, BrokerLink, Route
from client_core.connection.reasons import reason_of, text_of_reason
from client_core.connection.reconnect import Reconnect
from client_core.connection.retry import RetryConfig
from client_core.connection.tls import TlsConfig

__all__ = [
    "HEARTBEAT",
    "BackgroundRunner",
    "BearerToken",
    "Broker",
    "BrokerLink",
    "Connection",
    "Duplex",
    "Endpoint",
    "EventLoopThread",
    "Reconnect",
    "RetryConfig",
    "Route",
    "TlsConfig",
    "TokenFile",
    "is_own_cancellation",
    "parse_endpoints",
    "reason_of",
    "text_of_reason",
]
