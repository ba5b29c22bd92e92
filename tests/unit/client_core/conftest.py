"""What both SDKs share is tried through a producer, on its stub of a broker."""

from __future__ import annotations

from unit.producer_sdk.conftest import quick, second_stub, stub

__all__ = ["quick", "second_stub", "stub"]
