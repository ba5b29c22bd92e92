"""Where a relay sends to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from client_core.errors import HalfmqError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from client_core.message import Message

__all__ = ["NotTried", "RelayTarget"]


class NotTried(HalfmqError):
    """The message was not sent: one before it in its group was not stored, or the relay may not send now."""


class RelayTarget(Protocol):
    """Stores messages; ``BrokerTarget`` is that of halfmq's brokers.

    It may have an attribute ``is_failing``: True while its destination cannot be reached, as far as it knows. A relay
    that is stopped does not wait for calls under way then.
    """

    def send(self, messages: Sequence[Message], may_send: Callable[[], bool]) -> Sequence[Exception | None]:
        """Stores messages durably.

        Messages of one message group keep their order: after one that is not stored, none of its group is sent any
        more. Calls come from several threads at a time, but never with the same message group. Each message has a
        ``message_id``, and comes again with the same one when it is not known whether it was stored.

        Args:
            messages: Up to ``RelaySettings.batch`` of them, never none.
            may_send: Whether the relay still has the turn, as far as it can know. To be asked before each request, also
                before one that is repeated: a process may have stood still since the request before, and another relay
                may have sent later messages of these groups. If it may not, the messages left are not sent.

        Returns:
            For each message, in order: None, it is stored. NotTried: it was not sent. RequestRefused: it can never be
            stored as it is. Any other exception: it may be stored or not, and is sent again later.

        Raises:
            Exception: The same as that of every message; the relay pauses.
        """
        ...

    def close(self) -> None:
        """Gives back what it holds; calls under way may fail."""
        ...
