"""How halfmq's SDKs reach a broker: endpoints, channels with fail-over, retries, streams, the background loop.

Both SDKs stand on this package: consumer_sdk imports it too. It knows the protocol's services and nothing of what
producers and consumers do with them.
"""

from __future__ import annotations

from producer_sdk.connection.background import BackgroundRunner, EventLoopThread, is_own_cancellation
from producer_sdk.connection.duplex import HEARTBEAT, Duplex
from producer_sdk.connection.endpoints import Endpoint, parse_endpoints
from producer_sdk.connection.link import Broker, BrokerLink, Route
from producer_sdk.connection.reasons import reason_of, text_of_reason
from producer_sdk.connection.reconnect import Reconnect
from producer_sdk.connection.retry import RetryConfig
from producer_sdk.connection.settings import (
    check_count,
    check_kind,
    check_number,
    check_seconds,
    check_text,
    client_name,
    refuse,
)
from producer_sdk.connection.times import Span, as_duration, as_durations, as_timestamp, read_span, read_time
from producer_sdk.connection.tls import TlsConfig

__all__ = [
    "HEARTBEAT",
    "BackgroundRunner",
    "Broker",
    "BrokerLink",
    "Duplex",
    "Endpoint",
    "EventLoopThread",
    "Reconnect",
    "RetryConfig",
    "Route",
    "Span",
    "TlsConfig",
    "as_duration",
    "as_durations",
    "as_timestamp",
    "check_count",
    "check_kind",
    "check_number",
    "check_seconds",
    "check_text",
    "client_name",
    "is_own_cancellation",
    "parse_endpoints",
    "read_span",
    "read_time",
    "reason_of",
    "refuse",
    "text_of_reason",
]
