"""How far queues are carried, told to a consumer group of halfmq: for its lag, and for what retention keeps for it."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from client_core.errors import BrokerFailed, BrokerUnavailable, HalfmqError, RequestRefused
from consumer_sdk.reading import commit_offsets, queue_offsets
from halfmq_connect.kafka.ending import Ending, Patience, PatientRunner
from halfmq_connect.kafka.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping
    from concurrent.futures import Future

    from client_core.connection import BackgroundRunner, BrokerLink
    from halfmq_connect.kafka.feed import QueueAt
    from halfmq_connect.outages import Outage

__all__ = ["Progress"]

_log = logging.getLogger("halfmq.kafka")

_EVERY = 1.0


class Progress:
    """The offsets that a group is to be told. Shards note them, one thread tells them."""

    def __init__(
        self, group: str | None, link: BrokerLink, runner: BackgroundRunner, outage: Outage, stopping: threading.Event
    ) -> None:
        """Takes the group; None: nothing is told."""
        self._stopping = stopping
        self._group, self._link, self._runner, self._outage = group, link, runner, outage
        self._lock = threading.Lock()
        self._untold: dict[QueueAt, int] = {}
        self._told_at = 0.0
        # One call at a time: a later one must not be overtaken by an earlier one.
        self._under_way: Future[None] | None = None

    def check(self, topic: str) -> None:
        """Checks that the group exists.

        Raises:
            ConfigurationError: It does not.
            HalfmqError: halfmq does not answer, or refuses.
        """
        if self._group is not None:
            PatientRunner(self._runner, Patience(self._stopping)).run(
                self._asked(queue_offsets(self._link, topic, self._group, None))
            )

    def note(self, ends: Mapping[QueueAt, int]) -> None:
        """Notes how far queues are carried."""
        if self._group is not None:
            with self._lock:
                self._untold |= ends

    def tell(self) -> None:
        """Tells what is new, now and then, without waiting for an answer.

        Raises:
            ConfigurationError: The group cannot be told any more.
            RequestRefused: A topic was deleted.
        """
        if self._under_way is not None:
            if not self._under_way.done():
                return
            ended, self._under_way = self._under_way, None
            ended.result()
        if self._untold and time.monotonic() - self._told_at >= _EVERY:
            self._told_at = time.monotonic()
            self._under_way = self._runner.submit(self._tell())

    def tell_rest(self) -> None:
        """Tells what was not told yet, and waits for the answer, for some seconds where the bridge is to end."""
        patience = Patience(self._stopping)
        try:
            if self._under_way is not None:
                patience.result(self._under_way)
            if self._untold:
                PatientRunner(self._runner, patience).run(self._tell())
        except (HalfmqError, Ending) as error:
            why = error if isinstance(error, HalfmqError) else "halfmq does not answer"
            _log.warning(
                "the group %r was not told how far the bridge is: %s", self._group, why, extra={"group": self._group}
            )

    async def _tell(self) -> None:
        with self._lock:
            ends, self._untold = self._untold, {}
        by_topic: dict[tuple[str, str], dict[int, int]] = {}
        for each, offset in ends.items():
            by_topic.setdefault((each.topic, each.topic_id), {})[each.queue] = offset
        try:
            for (topic, topic_id), offsets in by_topic.items():
                await self._asked(commit_offsets(self._link, topic, str(self._group), offsets, topic_id))
        except (BrokerUnavailable, BrokerFailed) as error:
            self._outage.note(error)
            with self._lock:
                # What shards noted meanwhile is newer.
                self._untold = ends | self._untold
        else:
            self._outage.over()

    async def _asked(self, call: Awaitable[object]) -> None:
        try:
            await call
        except RequestRefused as error:
            if error.field not in {"group", "consumer_group"}:
                raise
            msg = f"the group {self._group!r} cannot be told how far the bridge is (group, --group): {error}"
            raise ConfigurationError(msg, reason=error.reason, field="group") from error
