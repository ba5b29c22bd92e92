"""Where a relay sends to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from client_core.errors import HalfmqError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from client_core.message import Message

__all__ = ["NotTried", "RelayTarget"]


class NotTried(HalfmqError):
    """The message was not sent, because one before it in its message group was not stored."""


class RelayTarget(Protocol):
    """Stores messages; ``BrokerTarget`` is that of halfmq's brokers.

    It may have an attribute ``is_failing``: True while its destination cannot be reached, as far as it knows. A relay
    that is stopped does not wait for calls under way then.
    """

    def send(self, messages: Sequence[Message]) -> Sequence[Exception | None]:
        """Stores messages durably.

        Messages of one message group keep their order: after one that is not stored, none of its group is sent any
        more. Calls come from several threads at a time, but never with the same message group. Each message has a
        ``message_id``, and comes again with the same one when it is not known whether it was stored.

        Args:
            messages: Up to ``RelaySettings.batch`` of them, never none.

        Returns:
            For each message, in their order: None, it is stored. NotTried: see above. RequestRefused: it can never be
            stored as it is. Any other exception: it may be stored or not, and is sent again later.

        Raises:
            Exception: The same as that of every message; the relay pauses.
        """
        ...

    def close(self) -> None:
        """Gives back what it holds; calls under way may fail."""
        ...
