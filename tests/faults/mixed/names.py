"""Topics that are deleted, and created again, through one broker while another one still knows them.

Whatever was acknowledged for such a topic must be found in the end, or the topic's deletion came after it.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import grpc

from faults.client import COMMITTED, TRY_AGAIN_SOON, Client, ItemRefused, code_of, message, new_id, unique
from faults.history import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

DELAY = 1.0
PAUSE = 0.2


@dataclass(slots=True)
class _Try:
    """One topic: what was sent and prepared for it while it was deleted."""

    topic: str
    sent: str
    prepared: str
    deleted: Outcome = Outcome.UNKNOWN
    anew: bool = False
    send: Outcome = Outcome.UNKNOWN
    prepare: Outcome = Outcome.UNKNOWN


class Names:
    """A context manager: inside of it topics come and go."""

    def __init__(self, endpoints: Sequence[str], seed: int, patience: float) -> None:
        self._clients = [Client(endpoint, patience) for endpoint in endpoints]
        self._fate = random.Random(seed)
        self._tries: list[_Try] = []
        self._errors: list[BaseException] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._guard, name="names", daemon=True)
        self._group = unique("shop")

    def __enter__(self) -> Self:
        """Begins."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends."""
        self._stopping.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "the names hang"
        for client in self._clients:
            client.close()

    def judge(self, client: Client) -> list[str]:
        """What contradicts what was acknowledged; every broker must be well."""
        assert not self._errors, self._errors
        wrong = [each for each in (self._judge(client, tried) for tried in self._tries) if each]
        return [f"topic {text}" for text in wrong]

    def _guard(self) -> None:
        try:
            while not self._stopping.wait(PAUSE):
                self._one()
        except BaseException as error:
            self._errors.append(error)

    def _one(self) -> None:
        here, there = self._clients[0], self._clients[-1]
        if self._fate.random() < 0.5:
            here, there = there, here
        tried = _Try(unique("gone"), new_id(), new_id())
        if self._ask(lambda: here.create_topic(tried.topic, 1)) is not Outcome.OK:
            return
        # So that the other broker knows the topic.
        if self._ask(lambda: there.send(message(tried.topic, "first"))) is not Outcome.OK:
            return
        self._tries.append(tried)

        def delete() -> None:
            tried.deleted = self._ask(lambda: here.delete_topic(tried.topic))
            if tried.deleted is not Outcome.FAILED and self._fate.random() < 0.5:
                tried.anew = True
                self._ask(lambda: here.create_topic(tried.topic, 2))

        deleting = threading.Thread(target=delete)
        deleting.start()
        if self._fate.random() < 0.5:
            deleting.join()
        later = message(tried.topic, "later", message_id=tried.sent)
        later.delay.FromMicroseconds(int(DELAY * 1e6))
        tried.send = self._ask(lambda: there.send(later))
        half = message(tried.topic, "half")
        tried.prepare = self._ask(lambda: there.prepare(self._group, tried.prepared, [half], 3600))
        deleting.join()

    def _ask(self, what: Callable[[], object]) -> Outcome:
        try:
            what()
        except ItemRefused as refused:
            return Outcome.UNKNOWN if refused.code in TRY_AGAIN_SOON else Outcome.FAILED
        except grpc.RpcError as error:
            return Outcome.UNKNOWN if code_of(error) in TRY_AGAIN_SOON else Outcome.FAILED
        return Outcome.OK

    def _judge(self, client: Client, tried: _Try) -> str:
        if tried.send is Outcome.OK and not self._arrives(client, tried.sent) and not _was_moved(client, tried.sent):
            return f"{tried.topic}: a delayed message was acknowledged, and is nowhere ({tried})"
        if tried.prepare is Outcome.OK:
            try:
                (place,) = client.commit(tried.prepared).released
            except ItemRefused as refused:
                return f"{tried.topic}: prepared, and its commit is refused: {refused} ({tried})"
            if client.message(f"{tried.prepared}.0").message.offset != place.offset:
                return f"{tried.topic}: committed, and not where it should be ({tried})"
        return ""

    def _arrives(self, client: Client, message_id: str) -> bool:
        """Whether a delayed message becomes visible; it is due, or nearly so."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            found = client.message(message_id)
            assert found.state == COMMITTED
            if found.HasField("message"):
                return True
            if not found.HasField("waiting"):
                return False
            time.sleep(0.1)
        return False


def _was_moved(client: Client, message_id: str) -> bool:
    """Whether a delayed message lay in the log once: then its topic was deleted after it had become visible."""
    (place,) = client.transaction(message_id).op.released
    return not place.HasField("scheduled_at")
