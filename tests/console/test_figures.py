"""Figures of the overview and of the brokers' page: right, and never waited for."""

from __future__ import annotations

import asyncio
import json
import os
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from broker.app import Broker
from broker.config import BrokerConfig
from broker.domain.ids import uuid7
from broker.services.operating import cluster
from broker.storage.adapters.store import Store
from console.shop import PATIENCE, Unsure, Visitor
from producer_sdk import Admin, Message, TransactionProducer
from support.brokers import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import pytest

    from broker.ports.sampling import Overview

MINUTE = 60_000
PAGES = ("/", "/brokers", "/figures")


class SlowStore(Store):
    """Counts what there is when it is told to."""

    may_count: asyncio.Event

    async def overview(self) -> Overview:
        await self.may_count.wait()
        return await super().overview()


class FailingStore(Store):
    """One of its statements fails in the database."""

    async def trim_dedup_keys(self) -> int:
        return await self._clean(lambda session: len(session.fetch("SELECT nothing FROM nowhere")))


@asynccontextmanager
async def console_on(make_store: type[Store]) -> AsyncIterator[Visitor]:
    config = BrokerConfig(
        database="sqlite:///:memory:",
        allow_unsafe_database=True,
        listen="127.0.0.1:0",
        console_listen="127.0.0.1:0",
        drain=1.0,
    )
    broker = Broker(config, make_store=make_store)
    await broker.start()
    try:
        yield Visitor(broker.console_endpoint)
    finally:
        await broker.stop()


@asynccontextmanager
async def slowly_counting() -> AsyncIterator[Visitor]:
    SlowStore.may_count = asyncio.Event()
    async with console_on(SlowStore) as visitor:
        yield visitor


async def shown(visitor: Visitor, page: str) -> str:
    answer = await asyncio.to_thread(visitor.get, page)
    assert answer.status == 200, answer.text
    return answer.text


async def test_no_page_waits_for_the_first_count(monkeypatch: pytest.MonkeyPatch) -> None:
    async with slowly_counting() as visitor:
        for page in ("/", "/brokers"):
            assert "Counting." in await shown(visitor, page)
        assert json.loads(await shown(visitor, "/figures")) == {}
        SlowStore.may_count.set()
        # The count that the first page began is still under way, or done.
        monkeypatch.setattr(cluster, "COUNT_EVERY", PATIENCE)
        await asyncio.wait_for(counted(visitor), PATIENCE)
        for page in ("/", "/brokers"):
            assert "Counting." not in await shown(visitor, page)


async def counted(visitor: Visitor) -> None:
    """Waits for a count; each look takes a moment."""
    while not json.loads(await shown(visitor, "/figures")):
        pass


async def test_no_page_waits_for_a_new_count_and_old_figures_say_how_old_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # No figures are young enough to be shown without a new count.
    monkeypatch.setattr(cluster, "OLD", 0.0)
    async with slowly_counting() as visitor:
        SlowStore.may_count.set()
        await asyncio.wait_for(counted(visitor), PATIENCE)
        first = json.loads(await shown(visitor, "/figures"))["time"]
        SlowStore.may_count.clear()
        until = time.monotonic() + PATIENCE
        while "a new count goes on" not in await shown(visitor, "/"):
            assert time.monotonic() < until
        assert "a new count goes on" in await shown(visitor, "/brokers")
        assert json.loads(await shown(visitor, "/figures"))["time"] == first
        SlowStore.may_count.set()
        while json.loads(await shown(visitor, "/figures"))["time"] == first:
            assert time.monotonic() < until


async def test_what_failed_since_the_start_is_on_the_page_of_brokers() -> None:
    async with console_on(FailingStore) as visitor:
        until = time.monotonic() + PATIENCE
        while "<td>retention 1</td><td>other 1</td>" not in await shown(visitor, "/brokers"):
            assert time.monotonic() < until


def bars(browser: Any) -> dict[str, tuple[str, str, float]]:
    """Ages of the overview with pending and parked ones, and the filled share of the bar; in one look."""
    found: list[list[Any]] = browser.execute_script(
        "return [...document.querySelectorAll('table.bars tbody tr')].map(row => ["
        "...[...row.cells].slice(0, 3).map(each => each.textContent.trim()),"
        "(meter => meter.value / meter.max)(row.querySelector('meter'))])"
    )
    return {age: (pending, parked, share) for age, pending, parked, share in found}


def test_the_bars_of_ages_have_the_numbers_of_transactions(tmp_path: Path, browser: Any) -> None:
    """On a broker of its own: nobody else's transactions are on the page."""
    with (
        BrokerProcess(
            f"sqlite:///{tmp_path / 'halfmq.db'}",
            console_listen="127.0.0.1:0",
            first_check=0.2,
            check_interval=0.2,
            max_checks=1,
        ) as broker,
        Admin(broker.endpoint) as admin,
        TransactionProducer(broker.endpoint, "shop", Unsure()) as selling,
    ):
        admin.create_topic("orders")
        # Four pending, the checks of which are not due; two parked.
        for minutes, delay in [(30, 3600), (30, 3600), (45, 3600), (100, 3600), (30, None), (200, None)]:
            own = UUID(bytes=uuid7(time.time_ns() // 1_000_000 - minutes * MINUTE, os.urandom(10)))
            selling.prepare(Message("orders", "x"), transaction_id=str(own), first_check_delay=delay)
        WebDriverWait(browser, PATIENCE).until(lambda _: sum(each.parked for each in admin.overview().pending) == 2)
        browser.get(f"http://{broker.console_endpoint}/")
        WebDriverWait(browser, PATIENCE).until(lambda page: page.find_elements(By.CSS_SELECTOR, "table.bars"))
        assert bars(browser) == {
            "1 min": ("0", "0", 0.0),
            "10 min": ("0", "0", 0.0),
            "1 h": ("3", "1", 1.0),
            "6 h": ("1", "1", 0.5),
            "1 d": ("0", "0", 0.0),
            "7 d": ("0", "0", 0.0),
            "older": ("0", "0", 0.0),
        }
