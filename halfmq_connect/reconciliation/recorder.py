"""The consumer that records what is delivered."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from client_core.ids import MOST_IDS
from client_core.local_database import storable
from consumer_sdk import Consumer
from consumer_sdk.reconciliation import BUSINESS_TIME
from halfmq_connect.reconciliation.records import Record, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from client_core.connection import Endpoint
    from client_core.local_database import LocalDatabase
    from client_core.message import Message
    from client_core.stored import StoredMessage
    from halfmq_connect.reconciliation.records import Records

__all__ = ["Recorder", "first_key", "key_or_none", "record_of"]

_log = logging.getLogger("halfmq.reconciliation")

AT_ONCE = 256
"""Messages of a database transaction; as many more are received meanwhile."""
BYTES_AT_ONCE = 16 << 20
"""The same for the bytes of their bodies."""
_PAUSE = 1.0
_EARLIEST, _LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)


def first_key(message: StoredMessage | Message) -> str | None:
    """The first of a message's business keys."""
    return message.keys[0] if message.keys else None


class Recorder:
    """Receives the topic's messages in a thread of its own; a message is acked when its record is committed."""

    def __init__(
        self,
        database: LocalDatabase,
        records: Records,
        topic: str,
        key: Callable[[StoredMessage | Message], str | None],
        compare: Mapping[str, Callable[[StoredMessage], object]],
    ) -> None:
        """Takes where to write, and what to take from a message."""
        self._database = database
        self._records = records
        self._topic = topic
        self._key = key
        self._compare = compare
        self._stopped = threading.Event()
        self._consumer: Consumer | None = None
        self._thread: threading.Thread | None = None

    def start(self, endpoint: Endpoint, group: str) -> None:
        """Starts the thread; the group must exist."""
        self._consumer = Consumer(endpoint, group, self._topic, prefetch=AT_ONCE, prefetch_bytes=BYTES_AT_ONCE)
        self._consumer.start()
        self._thread = threading.Thread(target=self._run, args=(self._consumer,), name="halfmq-recorder", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; what it holds is delivered again."""
        self._stopped.set()
        if self._consumer is not None:
            self._consumer.stop()
        if self._thread is not None:
            self._thread.join(30)
        if self._consumer is not None:
            self._consumer.close()

    def _run(self, consumer: Consumer) -> None:
        while not self._stopped.is_set():
            try:
                messages = consumer.receive(AT_ONCE, timeout=_PAUSE)
                if not messages:
                    continue
                records = [record_of(each, self._key, self._compare) for each in messages]
                while not self._stopped.is_set():
                    try:
                        with self._database.transaction() as local:
                            self._records.add(local, records)
                    except Exception as error:
                        about = {"topic": self._topic, "message_ids": [each.message_id for each in messages[:MOST_IDS]]}
                        _log.warning("deliveries cannot be recorded now: %s; trying again", error, extra=about)
                        self._stopped.wait(_PAUSE)
                    else:
                        consumer.ack(messages, wait=False)
                        break
            except Exception as error:
                text = "messages of %s cannot be recorded now: %s; trying again"
                _log.warning(text, self._topic, error, extra={"topic": self._topic})
                self._stopped.wait(_PAUSE)


def record_of(
    message: StoredMessage,
    key: Callable[[StoredMessage | Message], str | None],
    compare: Mapping[str, Callable[[StoredMessage], object]],
) -> Record:
    """The record of a message, or of its dead letter."""
    at = message.born_at
    given = message.properties.get(BUSINESS_TIME)
    if given is not None:
        try:
            at = _time_of(given)
        except (OverflowError, ValueError):
            text = "message %s has a %s that is no time: %.100r"
            about = {"message_id": message.message_id, "topic": message.topic}
            _log.warning(text, message.message_id, BUSINESS_TIME, given, extra=about)
    values = {name: _told(take, message) for name, take in compare.items()}
    return Record(key_or_none(key, message), message.message_id, at, values)


def key_or_none(key: Callable[[StoredMessage | Message], str | None], message: StoredMessage | Message) -> str | None:
    """The key of a message's row; None also where the user's function fails, for example on a body that is no JSON."""
    try:
        found = key(message)
    except Exception as error:
        about = {"message_id": message.message_id, "topic": message.topic}
        _log.warning("message_key failed on message %s: %r", message.message_id, error, extra=about)
        return None
    return None if found is None else storable(str(found))


def _time_of(text: str) -> datetime:
    at = datetime.fromisoformat(text)
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    if not _EARLIEST <= at <= _LATEST:
        raise ValueError(text)
    return at


def _told(take: Callable[[StoredMessage], object], message: StoredMessage) -> str | None:
    try:
        value = take(message)
    except Exception as error:
        return f"!{type(error).__name__}: {error}"
    return None if value is None else shortened(storable(str(value)))
