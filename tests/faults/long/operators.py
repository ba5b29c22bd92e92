"""Operators: they list what there is, look at metrics, and resolve what waits for them."""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Any

from faults.history import Outcome
from faults.many.clients import PacedClient
from producer_sdk import Admin, RequestRefused, Resolution, TransactionState
from support.metrics import text_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from faults.history import History
    from faults.many.notes import Notes
    from faults.many.scene import Scene

EVERY = 2.0
SOME = 50
FORGOTTEN = 5.0
"""Seconds after which a transaction that its producer did not decide is decided by an operator."""


class Resolver(PacedClient):
    """Decides parked transactions, and those that producers forgot."""

    what = "resolver"

    def __init__(
        self, endpoints: Sequence[str], number: int, seed: int, history: History, notes: Notes, *, scene: Scene
    ) -> None:
        super().__init__(endpoints, number, seed, history, notes)
        self._scene = scene
        self.resolved = 0

    def run(self) -> None:
        with Admin(self.endpoints) as admin:
            while not self.stopping.wait(EVERY / 2):
                self._resolve(admin, self._scene.asked, TransactionState.PARKED, 0.0)
                self._resolve(admin, self._scene.producers, TransactionState.PREPARED, FORGOTTEN)

    def _resolve(self, admin: Admin, group: str, state: TransactionState, age: float) -> None:
        for each in list(admin.list_transactions(state=state, producer_group=group, older_than=age)):
            commits = self.fate.random() < 0.5
            operation = self.history.begin(each.transaction_id, "commit" if commits else "rollback")
            resolution = Resolution.COMMIT if commits else Resolution.ROLLBACK
            try:
                admin.resolve_transaction(each.transaction_id, resolution, "the order was paid")
            except RequestRefused:
                self.history.end(operation, Outcome.FAILED)
            else:
                self.history.end(operation, Outcome.OK)
                self.resolved += 1


class Listing(PacedClient):
    """Lists everything that can be listed, at each broker in turns, and reads its metrics."""

    what = "operator"

    def __init__(
        self,
        endpoints: Sequence[str],
        number: int,
        seed: int,
        history: History,
        notes: Notes,
        *,
        topic: str,
        metrics: Sequence[str],
    ) -> None:
        super().__init__(endpoints, number, seed, history, notes)
        self.endpoints = list(endpoints)
        self._topic = topic
        self._metrics = metrics
        self.rounds = 0

    def run(self) -> None:
        admins = [Admin(endpoint) for endpoint in self.endpoints]
        while not self.stopping.wait(EVERY):
            self._round(admins[self.rounds % len(admins)])
            for endpoint in self._metrics:
                text_at(endpoint)
            self.rounds += 1
        for admin in admins:
            admin.close()

    def _round(self, admin: Admin) -> None:
        admin.overview()
        admin.list_brokers()
        for listing in (
            admin.list_topics(),
            admin.list_groups(),
            admin.list_group_lag(),
            admin.list_clients(),
            admin.list_transactions(),
            admin.list_decided_transactions(),
            admin.list_audit_records(),
        ):
            _read(listing)
        for each in _read(admin.find_messages(self._topic))[-3:]:
            try:
                admin.timeline(each.message_id)
                _read(admin.find_messages(self._topic, key=next(iter(each.keys), "none")))
            except RequestRefused:
                continue  # It has expired meanwhile.


def _read(listing: Iterator[Any]) -> list[Any]:
    """The first ones; the rest is left, and the listing is ended."""
    with closing(listing):  # type: ignore[type-var]
        return list(islice(listing, SOME))
