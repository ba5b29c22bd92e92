"""Connections of one of Spark's processes, kept from task to task: workers are reused."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from client_core.connection import BackgroundRunner, BrokerLink, RetryConfig

if TYPE_CHECKING:
    from consumer_sdk.spark.options import BrokerOptions

__all__ = ["connected"]

# The commit of a large epoch takes as long as the database needs to copy it.
_PATIENT = RetryConfig(attempt_timeout=900.0, deadline=1800.0)


def connected(connection: BrokerOptions, *, patient: bool = False) -> tuple[BrokerLink, BackgroundRunner]:
    """The link to the brokers, and its event loop; never closed, and never inherited after a fork.

    Args:
        connection: How to reach the brokers.
        patient: Whether answers may take many minutes.
    """
    return _made(connection, patient, os.getpid())


@functools.cache
def _made(connection: BrokerOptions, patient: bool, process: int) -> tuple[BrokerLink, BackgroundRunner]:
    return BrokerLink(connection.connection(_PATIENT if patient else None)), BackgroundRunner("Spark")
