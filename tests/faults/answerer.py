"""A live producer that answers the brokers' checks about its group's transactions, and keeps a History of it."""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from faults.client import TRY_AGAIN, Checks, Client, code_of
from faults.history import Call, History, Operation, Outcome
from halfmq.v1 import transaction_pb2

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from faults.history import Place
    from halfmq.v1 import message_pb2

LONGEST = 24 * 3600.0
PAUSE = 0.05
MOST_UNKNOWN = 2
_VERDICTS: dict[Call, transaction_pb2.CheckVerdict.ValueType] = {
    "commit": transaction_pb2.CHECK_VERDICT_COMMIT,
    "rollback": transaction_pb2.CHECK_VERDICT_ROLLBACK,
}
_NO_ANSWER = {code.value[0] for code in TRY_AGAIN}


@dataclass(slots=True)
class _Local:
    """What became of a local transaction, and how many checks of it are answered before that is known."""

    verdict: Call
    unknown: int


class Answerer:
    """Holds a check stream to every broker, and opens it again when the broker is back."""

    def __init__(
        self,
        endpoints: Sequence[str],
        group: str,
        history: History,
        place_of: Callable[[message_pb2.LogPosition], Place | None] = lambda position: (
            position.queue,
            position.offset,
        ),
    ) -> None:
        self.group = group
        self._place_of = place_of
        self.errors: list[BaseException] = []
        self._history = history
        self._locals: dict[str, _Local] = {}
        self._streams: dict[str, Checks] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._answer, args=(endpoint,), name=f"answerer-{endpoint}", daemon=True)
            for endpoint in endpoints
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        with self._lock:
            for stream in self._streams.values():
                stream.cancel()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), f"{thread.name} hangs"

    def decide(self, transaction_id: str, fate: random.Random, *, prepared: bool) -> None:
        """Ends the local transaction; one whose half message may not be there was never begun. Until then: UNKNOWN."""
        chance = fate.random()
        verdict: Call = "commit" if prepared and chance < 0.7 else "rollback"
        # Some never know.
        unknown = sys.maxsize if prepared and chance > 0.9 else fate.randrange(MOST_UNKNOWN + 1)
        with self._lock:
            self._locals[transaction_id] = _Local(verdict, unknown)

    def _answer(self, endpoint: str) -> None:
        try:
            with Client(endpoint) as client:
                while not self._stopping.is_set():
                    self._hold(client, endpoint)
                    self._stopping.wait(PAUSE)
        except BaseException as error:
            self.errors.append(error)

    def _hold(self, client: Client, endpoint: str) -> None:
        """Answers on one stream until it ends; what then waits to be confirmed stays unknown."""
        waiting: dict[str, list[Operation]] = defaultdict(list)
        try:
            with client.checks(self.group, LONGEST) as stream:
                with self._lock:
                    self._streams[endpoint] = stream
                if self._stopping.is_set():
                    return
                for response in stream:
                    if response.HasField("check"):
                        self._asked(stream, response.check, waiting)
                    elif response.HasField("answered"):
                        self._confirmed(response.answered.result, waiting)
        except grpc.RpcError as error:
            if code_of(error) not in TRY_AGAIN:
                raise
        for operations in waiting.values():
            for operation in operations:
                self._history.end(operation, Outcome.UNKNOWN)

    def _asked(
        self, stream: Checks, check: transaction_pb2.TransactionCheck, waiting: dict[str, list[Operation]]
    ) -> None:
        transaction_id = check.transaction_id
        self._history.check(transaction_id, check.check_number)
        verdict: Call | None = None
        with self._lock:
            local = self._locals.get(transaction_id)
            if local and local.unknown:
                local.unknown -= 1
            elif local:
                verdict = local.verdict
        if verdict is None:
            stream.answer(check, transaction_pb2.CHECK_VERDICT_UNKNOWN)
            return
        waiting[transaction_id].append(self._history.begin(transaction_id, verdict))
        stream.answer(check, _VERDICTS[verdict])

    def _confirmed(self, result: transaction_pb2.TransactionResult, waiting: dict[str, list[Operation]]) -> None:
        if not waiting[result.transaction_id]:
            return  # An UNKNOWN that could not be noted.
        operation = waiting[result.transaction_id].pop(0)
        if not result.HasField("error"):
            places = [self._place_of(position) for position in result.released]
            self._history.end(operation, Outcome.OK, *places)
        else:
            outcome = Outcome.UNKNOWN if result.error.code in _NO_ANSWER else Outcome.FAILED
            self._history.end(operation, outcome)
