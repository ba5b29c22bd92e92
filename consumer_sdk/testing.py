"""A broker inside the test process; the same as producer_sdk.testing."""

from __future__ import annotations

from producer_sdk.testing import embedded_broker, halfmq_broker

__all__ = ["embedded_broker", "halfmq_broker"]
