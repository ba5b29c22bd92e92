"""Messages as consumers receive them: under a lease, to be settled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from client_core.stored import StoredMessage

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from client_core.message import LogPosition
    from halfmq.v1 import consumer_pb2

__all__ = ["AsyncReceivedMessage", "DeliveredMessage", "ReceivedMessage", "handles_of"]


class DeliveredMessage(StoredMessage):
    """A message that was delivered to this consumer under a lease."""

    __slots__ = ("_delivery", "settled")

    def __init__(self, delivery: consumer_pb2.Delivery) -> None:
        """Wraps the wire form."""
        self._delivery = delivery
        self._message = delivery.message
        self.settled = False
        """Whether a call that was not the consumer's own acknowledged it: ``Producer.send_and_ack``."""

    @property
    def receipt_handle(self) -> str:
        """The receipt handle, which identifies this delivery at the broker."""
        return self._delivery.receipt_handle

    @property
    def attempt(self) -> int:
        """Which delivery of this message to the group this is, from 1."""
        return self._delivery.attempt

    @property
    def last_error(self) -> str | None:
        """Reason of the last nack of this message, if there was one."""
        return self._delivery.last_error or None


class _Settles(Protocol):
    def ack(self, messages: DeliveredMessage, /, *, wait: bool = True) -> None: ...
    def nack(
        self, messages: DeliveredMessage, /, *, delay: float | None = None, reason: str = "", wait: bool = True
    ) -> list[LogPosition | None]: ...

    def settled_elsewhere(self, message: DeliveredMessage, /) -> None: ...


class _SettlesAsync(Protocol):
    def ack(self, messages: DeliveredMessage, /, *, wait: bool = True) -> Coroutine[Any, Any, None]: ...
    def nack(
        self, messages: DeliveredMessage, /, *, delay: float | None = None, reason: str = "", wait: bool = True
    ) -> Coroutine[Any, Any, list[LogPosition | None]]: ...
    def settled_elsewhere(self, message: DeliveredMessage, /) -> None: ...


class ReceivedMessage(DeliveredMessage):
    """A message that a Consumer received; settle it with ack() or nack()."""

    __slots__ = ("_consumer",)

    def __init__(self, delivery: consumer_pb2.Delivery, consumer: _Settles) -> None:
        """Wraps the wire form."""
        super().__init__(delivery)
        self._consumer = consumer

    def ack(self, *, wait: bool = True) -> None:
        """Marks the message as handled.

        Args:
            wait: Wait for the broker's confirmation; otherwise refusals are logged, and ``close()`` waits instead.

        Raises:
            StaleReceipt: Its lease has ended; it was, or will be, delivered again.
            ReceiptRefused: The broker refused it for another reason.
            BrokerUnavailable: No broker confirmed it before the retry deadline; it is still sent when one is back.
        """
        self._consumer.ack(self, wait=wait)

    def settled_elsewhere(self) -> None:
        """Has the consumer know that another call acknowledged it; ``Producer.send_and_ack`` does so."""
        self.settled = True
        self._consumer.settled_elsewhere(self)

    def nack(self, delay: float | None = None, reason: str = "", *, wait: bool = True) -> LogPosition | None:
        """Returns the message; it is delivered again, or moved to the dead letter topic after its last attempt.

        With a message of a message group, all later delivered ones of the group are returned as well, and redelivered
        in order. Those that wait here are dropped; acks of those already received are refused.

        Args:
            delay: Seconds after which it may be delivered again, up to 12 h; None: the group's retry delays.
            reason: Reason, up to 500 characters; the ``last_error`` of the next delivery.
            wait: Wait for the broker's confirmation; otherwise refusals are logged.

        Returns:
            Its position in the dead letter topic, if its attempts are used up; None otherwise, or without ``wait``.

        Raises:
            StaleReceipt: Its lease has ended; it was, or will be, delivered again.
            ReceiptRefused: The broker refused it for another reason.
            BrokerUnavailable: No broker confirmed it before the retry deadline; it is still sent when one is back.
            TypeError: An argument is of the wrong type.
            ValueError: The delay is out of range; the reason is too long, or cannot be written in UTF-8.
        """
        positions = self._consumer.nack(self, delay=delay, reason=reason, wait=wait)
        return positions[0] if positions else None


class AsyncReceivedMessage(DeliveredMessage):
    """A message that an AsyncConsumer received; settle it with ack() or nack()."""

    __slots__ = ("_consumer",)

    def __init__(self, delivery: consumer_pb2.Delivery, consumer: _SettlesAsync) -> None:
        """Wraps the wire form."""
        super().__init__(delivery)
        self._consumer = consumer

    async def ack(self, *, wait: bool = True) -> None:
        """Marks the message as handled.

        Args:
            wait: Wait for the broker's confirmation; otherwise refusals are logged, and ``close()`` waits instead.

        Raises:
            StaleReceipt: Its lease has ended; it was, or will be, delivered again.
            ReceiptRefused: The broker refused it for another reason.
            BrokerUnavailable: No broker confirmed it before the retry deadline; it is still sent when one is back.
        """
        await self._consumer.ack(self, wait=wait)

    def settled_elsewhere(self) -> None:
        """Has the consumer know that another call acknowledged it; ``Producer.send_and_ack`` does so."""
        self.settled = True
        self._consumer.settled_elsewhere(self)

    async def nack(self, delay: float | None = None, reason: str = "", *, wait: bool = True) -> LogPosition | None:
        """Returns the message; it is delivered again, or moved to the dead letter topic after its last attempt.

        With a message of a message group, all later delivered ones of the group are returned as well, and redelivered
        in order. Those that wait here are dropped; acks of those already received are refused.

        Args:
            delay: Seconds after which it may be delivered again, up to 12 h; None: the group's retry delays.
            reason: Reason, up to 500 characters; the ``last_error`` of the next delivery.
            wait: Wait for the broker's confirmation; otherwise refusals are logged.

        Returns:
            Its position in the dead letter topic, if its attempts are used up; None otherwise, or without ``wait``.

        Raises:
            StaleReceipt: Its lease has ended; it was, or will be, delivered again.
            ReceiptRefused: The broker refused it for another reason.
            BrokerUnavailable: No broker confirmed it before the retry deadline; it is still sent when one is back.
            TypeError: An argument is of the wrong type.
            ValueError: The delay is out of range; the reason is too long, or cannot be written in UTF-8.
        """
        positions = await self._consumer.nack(self, delay=delay, reason=reason, wait=wait)
        return positions[0] if positions else None


def handles_of(messages: DeliveredMessage | Iterable[DeliveredMessage]) -> list[str]:
    """The receipt handles of one message or several.

    Raises:
        TypeError: Something in it is no message that a consumer received.
    """
    if isinstance(messages, DeliveredMessage):
        return [messages.receipt_handle]
    listed = list(messages) if isinstance(messages, Iterable) else [messages]
    try:
        return [message.receipt_handle for message in listed]
    except AttributeError:
        other = next(message for message in listed if not isinstance(message, DeliveredMessage))
        msg = f"expected messages that a consumer received, got {type(other).__name__}: {other!r}"
        raise TypeError(msg) from None
