from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from producer_sdk import RetryConfig
from unit.producer_sdk.stub_broker import StubBroker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def stub() -> AsyncIterator[StubBroker]:
    async with StubBroker() as broker:
        yield broker


@pytest.fixture
async def second_stub() -> AsyncIterator[StubBroker]:
    async with StubBroker() as broker:
        yield broker


@pytest.fixture
def quick() -> RetryConfig:
    """Retries without waits that a test would notice."""
    return RetryConfig(initial_backoff=0.001, maximum_backoff=0.01, deadline=5.0)
