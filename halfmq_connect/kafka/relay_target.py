"""Kafka as the target of an outbox's relay: at least once, in order per message group."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from client_core.errors import RequestRefused
from halfmq_connect.kafka.errors import BridgeError, RecordRefused
from halfmq_connect.kafka.target import KafkaPosition, KafkaTarget
from producer_sdk.outbox import NotTried

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from client_core.message import Message

__all__ = ["KafkaRelayTarget"]


class KafkaRelayTarget:
    """Sends rows of an outbox to Kafka; see producer_sdk.outbox.RelayTarget.

    A message that comes again, because it is not known whether it was stored, is in Kafka twice, with the same
    ``halfmq.message_id``. Relayed to halfmq and carried on by a KafkaBridge, it is there once.
    """

    def __init__(self, target: KafkaTarget) -> None:
        """Takes the client of Kafka, which this closes."""
        self._target = target

    @property
    def is_failing(self) -> bool:
        """Whether Kafka cannot be reached: see RelayTarget."""
        return self._target.is_failing

    def send(self, messages: Sequence[Message], may_send: Callable[[], bool]) -> list[Exception | None]:
        """Stores messages, in waves: of each message group one at a time, so that none overtakes one that failed."""
        outcomes: list[Exception | None] = [None] * len(messages)
        waves: dict[int, list[int]] = defaultdict(list)
        depth: dict[tuple[str, str], int] = defaultdict(int)
        for index, message in enumerate(messages):
            order = _order(message)
            waves[0 if order is None else depth[order]].append(index)
            if order is not None:
                depth[order] += 1
        stopped: set[tuple[str, str]] = set()
        for number in sorted(waves):
            sending = []
            for index in waves[number]:
                if _order(messages[index]) in stopped:
                    outcomes[index] = NotTried("one before it in its message group was not stored")
                else:
                    sending.append(index)
            if not sending:
                continue
            found = self._target.send([messages[index] for index in sending], may_send)
            for index, result in zip(sending, found, strict=True):
                if isinstance(result, KafkaPosition):
                    continue
                outcomes[index] = _outcome(result)
                order = _order(messages[index])
                if order is not None:
                    stopped.add(order)
        return outcomes

    def close(self) -> None:
        """Waits for what is under way, unless Kafka cannot be reached."""
        self._target.close()


def _order(message: Message) -> tuple[str, str] | None:
    return None if message.message_group is None else (message.topic, message.message_group)


def _outcome(error: BridgeError) -> Exception:
    if error.reason == "NOT_SENT":
        return NotTried("the relay stood still, or has lost its turn")
    return RequestRefused(str(error)) if isinstance(error, RecordRefused) else error
