from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from producer_sdk import RetryConfig
from unit.consumer_sdk.stub_consume_broker import StubConsumeBroker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def stub() -> AsyncIterator[StubConsumeBroker]:
    async with StubConsumeBroker() as broker:
        yield broker


@pytest.fixture
async def second_stub() -> AsyncIterator[StubConsumeBroker]:
    async with StubConsumeBroker() as broker:
        yield broker


@pytest.fixture
def quick() -> RetryConfig:
    """Retries without waits that a test would notice."""
    return RetryConfig(initial_backoff=0.001, maximum_backoff=0.01, deadline=5.0)
