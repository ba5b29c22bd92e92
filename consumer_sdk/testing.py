"""A broker inside the test process; the same as producer_sdk.testing."""

from __future__ import annotations

from contextlib import suppress

from client_core.testing import embedded_broker

__all__ = ["embedded_broker"]

with suppress(ImportError):  # there is no fixture without pytest
    from client_core.testing import halfmq_broker

    __all__ += ["halfmq_broker"]
