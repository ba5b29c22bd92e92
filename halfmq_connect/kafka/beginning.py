"""Which topic a bridge keeps its positions in: written down when it begins, and looked after while it runs.

Without its positions nobody knows what a bridge has carried: it would carry everything a second time. So the identity
of their topic is noted beside what each bridge carries, after the topic was created and before anything is carried. One
that was noted and is not there any more was deleted; a bridge that was cut off before it noted any has carried nothing.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException

from halfmq_connect.kafka.cluster import unavailable
from halfmq_connect.kafka.errors import BridgeError
from halfmq_connect.kafka.positions import create_positions, positions_topic
from halfmq_connect.kafka.registry import note_positions, noted_positions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfmq_connect.kafka.cluster import Cluster

__all__ = ["PositionsTopic"]

_log = logging.getLogger("halfmq.kafka")

_EVERY = 10.0
_SETTLED = 5.0
"""Seconds after which all servers of Kafka know of a topic that was created."""
_AGAIN = 0.2


class PositionsTopic:
    """The topic of a bridge's positions."""

    def __init__(self, cluster: Cluster, client: Mapping[str, Any], bridge: str) -> None:
        """Asks nothing yet."""
        self._cluster, self._client, self._bridge = cluster, client, bridge
        self._name = positions_topic(bridge)
        self._topic_id: str | None = None
        self._looked_at = 0.0

    def begin(self, shards: int, *, anew: bool) -> bool:
        """Creates it, unless it exists; whether the bridge has not begun before.

        Args:
            shards: How many partitions it has.
            anew: Whether it may be created although the bridge has carried before.

        Raises:
            BridgeError: It was deleted.
            ConfigurationError: It has another number of partitions.
            KafkaException: Kafka does not answer, or refuses.
        """
        # The note is read first: what it names was there before, whatever another replica does at this moment.
        noted = noted_positions(self._cluster, self._bridge)
        until = time.monotonic() + _SETTLED
        while noted is not None and (there := self._cluster.identity(self._name)) != noted:
            if time.monotonic() < until:
                # A server may not know of it yet; or another replica begins anew.
                time.sleep(_AGAIN)
                noted = noted_positions(self._cluster, self._bridge)
            elif there is None and anew:
                _log.warning(
                    "beginning anew, as begin_anew says: %s was deleted", self._name, extra={"bridge": self._bridge}
                )
                # A bridge that is cut off from here on begins for the first time.
                note_positions(self._cluster, self._client, self._bridge, None)
                noted = None
            else:
                raise self._gone(there)
        created = create_positions(self._cluster, self._bridge, shards)
        if created != noted:
            note_positions(self._cluster, self._client, self._bridge, created)
        self._topic_id = created
        return noted is None

    def look(self) -> None:
        """Checks it now and then.

        Raises:
            BridgeError: It was deleted.
        """
        if time.monotonic() - self._looked_at < _EVERY:
            return
        try:
            self.check()
        except KafkaException as raised:
            if not unavailable(raised):
                raise
        self._looked_at = time.monotonic()

    def check(self) -> None:
        """Checks that it is the one that the bridge began with.

        Raises:
            BridgeError: It was deleted.
            KafkaException: Kafka does not answer, or refuses.
        """
        until = time.monotonic() + _SETTLED
        while (there := self._cluster.identity(self._name)) != self._topic_id:
            if time.monotonic() > until:
                raise self._gone(there)
            time.sleep(_AGAIN)

    def _gone(self, there: str | None) -> BridgeError:
        if there is None:
            remedy = (
                "To begin anew, set begin_anew (--begin-anew): topics begin as start (--start) says, and what was"
                " carried before is carried a second time with earliest"
            )
        else:
            remedy = (
                "If the positions in it are right, as after a move to another cluster, forget what was noted: halfmq"
                f" bridge forget to-kafka/{self._bridge}; otherwise delete it, and set begin_anew (--begin-anew):"
                " topics begin as start (--start) says"
            )
        what = "was deleted" if there is None else "was deleted and created anew"
        msg = f"the topic {self._name!r} of Kafka {what}: it has the positions of what is carried already. {remedy}"
        return BridgeError(msg, reason="POSITIONS_MISSING")
