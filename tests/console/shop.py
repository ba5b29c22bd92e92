"""What the console shows in its tests, and plain requests of it."""

from __future__ import annotations

import http.client
import re
import ssl
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from consumer_sdk import Consumer
from producer_sdk import (
    Admin,
    HalfMessages,
    LocalTransactionState,
    Message,
    Producer,
    TransactionListener,
    TransactionProducer,
    TransactionState,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from support.brokers import BrokerProcess

PATIENCE = 30.0
EVIL = "<script>window.pwned = 1</script>\"'&"


class Unsure(TransactionListener):
    """Never knows."""

    def execute_local_transaction(self, messages: HalfMessages, arg: Any) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN


@dataclass
class Answer:
    """An answer to a plain request."""

    status: int
    headers: Mapping[str, str]
    text: str


@dataclass
class Visitor:
    """Asks the console as a browser does, with its cookies and forms."""

    host: str
    tls: bool = False
    cookies: dict[str, str] = field(default_factory=dict)
    raw_cookies: list[str] = field(default_factory=list)

    def ask(self, method: str, path: str, body: str = "", **headers: str) -> Answer:
        sent = {"Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items()), **headers}
        if method == "POST":
            sent.setdefault("Content-Type", "application/x-www-form-urlencoded")
        connection: http.client.HTTPConnection
        if self.tls:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            connection = http.client.HTTPSConnection(self.host, timeout=PATIENCE, context=context)
        else:
            connection = http.client.HTTPConnection(self.host, timeout=PATIENCE)
        try:
            connection.request(method, path, body.encode(), {name.replace("_", "-"): v for name, v in sent.items()})
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        for value in answer.headers.get_all("Set-Cookie") or ():
            self.raw_cookies.append(value)
            for name, morsel in SimpleCookie(value).items():
                self.cookies[name] = morsel.value
        return Answer(answer.status, {name.lower(): value for name, value in answer.headers.items()}, text)

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, **headers)

    def form_token(self, page: str = "/") -> str:
        """The secret that forms of a page have."""
        found = re.search(r'name="form_token" value="([^"]+)"', self.get(page).text)
        return found[1] if found else self.cookies.get("halfmq_form", "")

    def post(self, path: str, page: str = "/", **fields: str) -> Answer:
        """Sends a form of a page."""
        return self.ask("POST", path, urlencode({"form_token": self.form_token(page), **fields}))


@dataclass
class Shop:
    """A broker with something to show."""

    broker: BrokerProcess
    admin: Admin
    parked: list[str]
    committed: str

    @property
    def url(self) -> str:
        return f"http://{self.broker.console_endpoint}"

    def visitor(self) -> Visitor:
        return Visitor(self.broker.console_endpoint)

    def park(self, group: str, count: int, *, already: int = 0) -> list[str]:
        """Parks transactions of a producer group that a test may decide: it shares those in `parked` with others.

        Args:
            group: the producer group.
            count: how many.
            already: how many of the group are parked already.
        """
        with TransactionProducer(self.broker.endpoint, group, Unsure()) as selling:
            selling.wait_until_registered(PATIENCE)
            made = _sell(selling, count)
            await_parked(self.admin, group, already + count)
        return made

    def bury(self, group: str, count: int, properties: Sequence[Mapping[str, str]] = ()) -> None:
        """Makes dead letters of a consumer group that a test may redrive and delete, with a topic of their own."""
        topic = f"{group}-letters"
        self.admin.create_topic(topic, queues=1, exist_ok=True)
        self.admin.create_group(group, max_attempts=1, start="earliest", exist_ok=True)
        with Producer(self.broker.endpoint) as sending:
            for number in range(count):
                sending.send(topic, f"letter {number}", properties=dict(properties[number]) if properties else {})
        with Consumer(self.broker.endpoint, group, [topic]) as reading:
            got: list[Any] = []
            while len(got) < count:
                got += reading.receive(count - len(got), timeout=PATIENCE)
            reading.nack(got, reason="nobody wants it")

    def until(self, enough: Callable[[], Any]) -> None:
        """Waits until something is so."""
        until = time.monotonic() + PATIENCE
        while not enough():
            assert time.monotonic() < until
            time.sleep(0.05)


def _sell(selling: TransactionProducer, count: int) -> list[str]:
    return [
        selling.send_in_transaction(
            [
                Message("orders", f'{{"order": {number}, "note": "{number}"}}', keys=[f"o-{number}"]),
                Message("invoices", EVIL),
            ]
        ).transaction_id
        for number in range(count)
    ]


def await_parked(admin: Admin, group: str, count: int) -> None:
    """Waits until so many transactions of a producer group are parked."""
    until = time.monotonic() + PATIENCE
    while len(list(admin.list_transactions(state=TransactionState.PARKED, producer_group=group))) < count:
        assert time.monotonic() < until
        time.sleep(0.1)


@contextmanager
def fill(broker: BrokerProcess) -> Iterator[Shop]:
    """Parked transactions, a committed one, dead letters, a consumer and a producer that are connected."""
    endpoint = broker.endpoint
    with (
        Admin(endpoint) as admin,
        TransactionProducer(endpoint, "shop", Unsure(), client_id="shop-1") as selling,
        Producer(endpoint) as sending,
    ):
        for topic in ("orders", "invoices"):
            admin.create_topic(topic, queues=2)
        admin.create_group("billing", max_attempts=1, start="earliest")
        selling.wait_until_registered(PATIENCE)
        parked = _sell(selling, 6)
        with TransactionProducer(endpoint, "stall") as deciding, deciding.transaction() as tx:
            tx.send("orders", b"\x00\x01\xff binary", tag="committed")
        for number in range(5):
            sending.send("orders", f"plain {number}", tag=EVIL, properties={EVIL: EVIL})
        with Consumer(endpoint, "billing", ["orders"], client_id="billing-1") as reading:
            got: list[Any] = []
            while len(got) < 6:
                got += reading.receive(6 - len(got), timeout=PATIENCE)
            plain = [each for each in got if each.tag == EVIL]
            reading.nack(plain[:4], reason=EVIL)
            reading.ack([plain[4], *(each for each in got if each.tag == "committed")])
            await_parked(admin, "shop", len(parked))
            until = time.monotonic() + PATIENCE
            while len(list(admin.list_clients())) < 2:
                assert time.monotonic() < until
                time.sleep(0.1)
            yield Shop(broker, admin, parked, tx.transaction_id)
