"""Makes the screenshots in docs/images: `scripts/screenshots`. Look at them before you commit them."""

from __future__ import annotations

import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from console.shop import Unsure
from consumer_sdk import Consumer
from producer_sdk import (
    Admin,
    Message,
    Producer,
    TransactionProducer,
    TransactionState,
)
from support.brokers import BrokerProcess
from support.chromium import open_browser

if TYPE_CHECKING:
    from collections.abc import Iterator

IMAGES = Path(__file__).parents[2] / "docs" / "images"
POINTS = 20
"""Of the charts."""
PATIENCE = 60.0


def order(number: int) -> Message:
    body = f'{{"order": {number}, "customer": "C-{number * 37 % 100}", "total": "{number * 7 + 12}.50"}}'
    return Message("orders", body, tag="placed", keys=[f"order-{number}"])


def sell(producer: Producer, stopped: threading.Event) -> None:
    """Something for the charts."""
    number = 100
    while not stopped.wait(0.3):
        producer.send_many([order(number + each) for each in range(1 + number * 7 % 5)])
        number += 10


@contextmanager
def shop(endpoint: str) -> Iterator[None]:
    """Transactions in doubt, some of them parked, messages, a consumer that fails, and dead letters."""
    with (
        Admin(endpoint) as admin,
        TransactionProducer(endpoint, "order-service", Unsure(), client_id="order-service-1") as ordering,
        Producer(endpoint) as sending,
    ):
        for topic in ("orders", "invoices", "payments"):
            admin.create_topic(topic, queues=4)
        admin.create_group("billing", max_attempts=1, start="earliest")
        admin.create_group("mailing", start="earliest")
        for number in range(1, 8):
            ordering.send_in_transaction([order(number), Message("invoices", f"invoice of order {number}")])
        until = time.monotonic() + PATIENCE
        while len(list(admin.list_transactions(state=TransactionState.PARKED))) < 7:
            assert time.monotonic() < until
            time.sleep(0.1)
        # Nobody of this group is there to be checked: they stay pending.
        with TransactionProducer(endpoint, "payment-service", Unsure()) as paying:
            for number in range(8, 12):
                paying.send_in_transaction([Message("payments", f"payment of order {number}")])
        with Consumer(endpoint, "billing", ["orders"], client_id="billing-1") as billing:
            sending.send_many([order(number) for number in range(20, 60)])
            got: list[Any] = []
            while len(got) < 30:
                got += billing.receive(30 - len(got), timeout=PATIENCE)
            billing.nack(got[:3], reason="the customer is not known")
            billing.ack(got[3:])
            stopped = threading.Event()
            selling = threading.Thread(target=sell, args=(sending, stopped))
            selling.start()
            try:
                yield
            finally:
                stopped.set()
                selling.join()


def shoot() -> None:
    """Makes them all."""
    IMAGES.mkdir(exist_ok=True)
    times = {"first_check": 0.2, "check_interval": 0.5, "max_checks": 4, "broker_id": "broker-1"}
    with (
        tempfile.TemporaryDirectory() as folder,
        BrokerProcess(f"sqlite:///{folder}/halfmq.db", console_listen="127.0.0.1:0", **times) as broker,
        shop(broker.endpoint),
    ):
        address = f"http://{broker.console_endpoint}"
        browser = open_browser(1200, 1050)
        try:
            browser.get(address)
            chart = browser.find_element(By.CSS_SELECTOR, "[data-figures]")
            WebDriverWait(browser, PATIENCE).until(lambda _: int(chart.get_attribute("data-points") or 0) >= POINTS)
            browser.save_screenshot(str(IMAGES / "console-overview.png"))
            browser.get(f"{address}/transactions?state=parked")
            browser.find_element(By.CSS_SELECTOR, "tbody a.id").click()
            WebDriverWait(browser, PATIENCE).until(lambda page: page.find_elements(By.ID, "checks"))
            browser.set_window_size(1200, 1300)
            browser.save_screenshot(str(IMAGES / "console-transaction.png"))
            browser.set_window_size(1400, 760)
            browser.get(f"{address}/groups/billing/dead-letters")
            browser.save_screenshot(str(IMAGES / "console-dead-letters.png"))
        finally:
            browser.quit()
        browser = open_browser(dark=True)
        try:
            # A window is never as narrow as a phone.
            phone = {"width": 390, "height": 800, "deviceScaleFactor": 2, "mobile": True}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
            features = [{"name": "prefers-color-scheme", "value": "dark"}]
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            browser.get(f"{address}/groups/billing")
            browser.save_screenshot(str(IMAGES / "console-phone.png"))
        finally:
            browser.quit()


if __name__ == "__main__":
    shoot()
