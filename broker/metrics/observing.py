"""Counts what the broker's parts tell of their work."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from broker.metrics.tallies import OTHER, Counter, Histogram
from broker.ports.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from prometheus_client.core import Metric

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
FEW_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30)
AGES = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 3600, 43_200, 86_400)
SIZES = (1 << 10, 4 << 10, 64 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)


class CountingObserver(Observer):
    """Counts calls, batches, rounds, checks, verdicts, messages, and failures of the database."""

    __slots__ = (
        "_answers",
        "_batch_failures",
        "_batch_seconds",
        "_batch_waits",
        "_bytes_in",
        "_bytes_out",
        "_call_seconds",
        "_calls",
        "_committed",
        "_database_errors",
        "_database_seconds",
        "_delivery_waits",
        "_items",
        "_last_rounds",
        "_messages_in",
        "_messages_out",
        "_pieces",
        "_redelivered",
        "_refused",
        "_release_seconds",
        "_rolled_back",
        "_round_failures",
        "_round_seconds",
        "_rounds",
        "_sent",
        "_sizes",
        "_unanswered",
        "_undelivered",
        "_verdict_ages",
        "_verdicts",
    )

    def __init__(self, most_names: int) -> None:
        """Takes how many names of topics and groups are told apart, in each metric."""
        self._of_calls()
        self._of_lanes()
        self._of_rounds()
        self._of_checks(most_names)
        self._of_messages(most_names)

    def _of_calls(self) -> None:
        self._calls = Counter("halfmq_calls_total", "Calls that ended, by gRPC code.", ["method", "code"])
        self._call_seconds = Histogram(
            "halfmq_call_seconds",
            "Time from a call's arrival to its end; how long a stream was open.",
            ["method"],
            SECONDS,
        )
        self._refused = Counter(
            "halfmq_refused_items_total",
            "Messages, transactions and verdicts that were refused within a call.",
            ["reason"],
        )

    def _of_lanes(self) -> None:
        lane = ["lane"]
        self._items = Counter("halfmq_lane_items_total", "Items in batches of the group commit.", lane)
        self._batch_failures = Counter("halfmq_lane_failed_batches_total", "Batches that failed as a whole.", lane)
        self._batch_seconds = Histogram(
            "halfmq_lane_batch_seconds",
            "Time from a batch's start to the database's answer to its COMMIT.",
            lane,
            SECONDS,
        )
        self._batch_waits = Histogram(
            "halfmq_lane_wait_seconds",
            "How long the first item of a batch had waited for its start.",
            lane,
            FEW_SECONDS,
        )
        self._database_seconds = Histogram(
            "halfmq_database_transaction_seconds", "Database transactions, attempts before included.", ["kind"], SECONDS
        )
        self._database_errors = Counter("halfmq_database_errors_total", "Errors of database transactions.", ["kind"])
        for kind in ("retry", "lost", "read_only", "full", "other"):
            self._database_errors.add((kind,), 0)

    def _of_rounds(self) -> None:
        loop = ["loop"]
        self._rounds = Counter("halfmq_rounds_total", "Rounds of maintenance.", loop)
        self._round_failures = Counter("halfmq_failed_rounds_total", "Rounds that failed.", loop)
        self._pieces = Counter("halfmq_failed_pieces_total", "Parts of rounds that failed, while others went on.", loop)
        self._round_seconds = Counter("halfmq_round_seconds_total", "Time of all rounds.", loop)
        self._last_rounds: dict[str, float] = {}

    def _of_checks(self, most: int) -> None:
        group = ["producer_group"]
        self._sent = Counter("halfmq_checks_sent_total", "Checks sent to producers.", group, names=1, most=most)
        self._undelivered = Counter(
            "halfmq_checks_undelivered_total",
            "Checks that no producer took; they are not counted.",
            group,
            names=1,
            most=most,
        )
        self._unanswered = Counter(
            "halfmq_checks_unanswered_total",
            "Checks without an answer when the transaction was checked again.",
            group,
            names=1,
            most=most,
        )
        self._answers = Counter("halfmq_check_answers_total", "Answers to checks.", ["verdict"])
        for verdict in ("COMMIT", "ROLLBACK", "UNKNOWN"):
            self._answers.add((verdict,), 0)
        self._committed = Counter(
            "rocketmq_commit_messages_total", "Half messages of committed transactions.", group, names=1, most=most
        )
        self._rolled_back = Counter(
            "rocketmq_rollback_messages_total", "Half messages of rolled back transactions.", group, names=1, most=most
        )
        self._verdicts = Counter("halfmq_verdicts_total", "Transactions that were decided.", ["verdict", "source"])
        self._verdict_ages = Histogram(
            "rocketmq_finish_message_latency",
            "Time from prepare to verdict in seconds.",
            ["verdict", "source"],
            AGES,
        )
        self._release_seconds = Histogram(
            "halfmq_release_seconds", "Time from the arrival of verdicts to their messages being visible.", [], SECONDS
        )

    def _of_messages(self, most: int) -> None:
        topic, out = ["topic", "message_type"], ["topic", "consumer_group"]
        self._messages_in = Counter("rocketmq_messages_in_total", "Messages stored.", topic, names=1, most=most)
        self._bytes_in = Counter("rocketmq_throughput_in_total", "Bytes of their bodies.", topic, names=1, most=most)
        self._sizes = Histogram("rocketmq_message_size", "Bytes of their bodies, each.", ["message_type"], SIZES)
        self._messages_out = Counter("rocketmq_messages_out_total", "Messages delivered.", out, names=2, most=most)
        self._bytes_out = Counter("rocketmq_throughput_out_total", "Bytes of their bodies.", out, names=2, most=most)
        self._redelivered = Counter(
            "halfmq_redelivered_messages_total", "Messages delivered again.", out, names=2, most=most
        )
        self._delivery_waits = Histogram(
            "halfmq_delivery_wait_seconds",
            "Time from being visible to the first delivery, of the first message of each delivery.",
            [],
            AGES,
        )

    def call_ended(self, method: str, code: str, seconds: float) -> None:
        """Counts a call."""
        self._calls.add((method, code))
        self._call_seconds.add((method,), seconds)

    def items_refused(self, reason: str, count: int) -> None:
        """Counts what was refused."""
        self._refused.add((reason,), count)

    def batch_started(self, lane: str, waited: float) -> None:
        """Counts a wait."""
        self._batch_waits.add((lane,), waited)

    def batch_ended(self, lane: str, items: int, seconds: float, error: Exception | None) -> None:
        """Counts a batch."""
        own = (lane,)
        self._items.add(own, items)
        self._batch_seconds.add(own, seconds)
        if error is not None:
            self._batch_failures.add(own)

    def database_answered(self, kind: str, seconds: float) -> None:
        """Counts a database transaction."""
        self._database_seconds.add((kind,), seconds)

    def database_failed(self, kind: str) -> None:
        """Counts an error."""
        self._database_errors.add((kind,))

    def round_ended(self, loop: str, seconds: float, error: Exception | None) -> None:
        """Counts a round."""
        own = (loop,)
        self._rounds.add(own)
        self._round_seconds.add(own, seconds)
        self._round_failures.add(own, 0 if error is None else 1)
        if error is None:
            self._last_rounds[loop] = time.time()

    def piece_failed(self, loop: str) -> None:
        """Counts a part of a round."""
        self._pieces.add((loop,))

    def check_sent(self, group_id: int, client_id: str | None) -> None:
        """Counts a check."""
        (self._undelivered if client_id is None else self._sent).add((group_id,))

    def check_answered(self, verdict: str) -> None:
        """Counts an answer."""
        self._answers.add((verdict,))

    def check_unanswered(self, group_id: int) -> None:
        """Counts a check without an answer."""
        self._unanswered.add((group_id,))

    def messages_stored(self, topic: str, kind: str, sizes: Sequence[int]) -> None:
        """Counts messages."""
        own = (topic, kind)
        self._messages_in.add(own, len(sizes))
        self._bytes_in.add(own, sum(sizes))
        self._sizes.add_all((kind,), sizes)

    def transaction_decided(self, group_id: int, verdict: str, source: str, halves: int, seconds: float) -> None:
        """Counts a verdict."""
        (self._committed if verdict == "COMMIT" else self._rolled_back).add((group_id,), halves)
        own = (verdict, source)
        self._verdicts.add(own)
        self._verdict_ages.add(own, seconds)

    def messages_released(self, seconds: float) -> None:
        """Counts a release."""
        self._release_seconds.add((), seconds)

    def messages_delivered(self, group: str, topic: str, count: int, size: int, attempt: int, seconds: float) -> None:
        """Counts a delivery."""
        own = (topic, group)
        self._messages_out.add(own, count)
        self._bytes_out.add(own, size)
        if attempt == 1:
            self._delivery_waits.add((), max(0.0, seconds))
        else:
            self._redelivered.add(own, count)

    def _by_number(self) -> list[Counter]:
        return [self._sent, self._undelivered, self._unanswered, self._committed, self._rolled_back]

    def numbers(self) -> set[int]:
        """Numbers of the producer groups that were told of."""
        return {number for each in self._by_number() for number in each.numbers()}

    @property
    def last_rounds(self) -> dict[str, float]:
        """When the last round of each loop ended well, in seconds since 1970."""
        return dict(self._last_rounds)

    def families(self, name_of: Callable[[int], str]) -> Iterator[Metric]:
        """All metrics; `name_of`: the name of a producer group by its number."""
        numbered = self._by_number()

        def named(number: int | str) -> str:
            return OTHER if number == OTHER else name_of(int(number))

        for each in [getattr(self, slot) for slot in self.__slots__]:
            if isinstance(each, Counter):
                yield each.family(named if each in numbered else None)
            elif isinstance(each, Histogram):
                yield each.family()
