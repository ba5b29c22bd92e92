"""A transaction as a block: `with producer.transaction() as tx`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from client_core.old_names import moved

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime
    from types import TracebackType

    from client_core.connection import BackgroundRunner
    from client_core.message import Message
    from client_core.results import TransactionResult
    from client_core.times import Span
    from producer_sdk.async_transaction import AsyncTransaction

__all__ = ["Transaction"]

__getattr__ = moved(__name__, {"AsyncTransaction": "producer_sdk.async_transaction"})


class Transaction:
    """The block of ``with producer.transaction() as tx``.

    Every ``send`` stores its half message durably before it returns. Commit the local transaction after the last of
    them and inside the block; leaving the block normally then releases the messages. When an exception leaves it, the
    producer's listener checks how the local transaction ended: it may have committed nevertheless. Without a listener
    an exception drops the messages.
    """

    def __init__(self, core: AsyncTransaction, runner: BackgroundRunner) -> None:
        """Starts without messages; nothing is sent yet."""
        self._core = core
        self._runner = runner

    @property
    def transaction_id(self) -> str:
        """Identity of the transaction; store it along with the local change, so that a check can be answered."""
        return self._core.transaction_id

    @property
    def message_ids(self) -> tuple[str, ...]:
        """Identities of the messages stored so far, in their order."""
        return self._core.message_ids

    @property
    def result(self) -> TransactionResult | None:
        """The transaction's state after commit or rollback; None before, and if it had no message."""
        return self._core.result

    @property
    def connection(self) -> Any:
        """The session or connection that the block was given, or opened on an Engine; None: it joined none."""
        return None

    def send(
        self,
        topic: str,
        body: bytes | str,
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
        deliver_at: datetime | None = None,
        delay: Span | None = None,
        priority: int = 0,
        dedup_key: str | None = None,
    ) -> str:
        """Stores one half message durably; consumers see it after the commit. See Message for the arguments.

        Returns:
            The message's id.

        Raises:
            DuplicateKey: Another message has the ``dedup_key``; this one is not part of the transaction.
            RequestRefused: The broker refused the message; it is not part of the transaction.
            PrepareUnconfirmed: It is unknown whether it was stored. The transaction can only be rolled back.
        """
        self._before_send()
        return self._runner.run(
            self._core.send(
                topic,
                body,
                tag=tag,
                keys=keys,
                properties=properties,
                message_group=message_group,
                deliver_at=deliver_at,
                delay=delay,
                priority=priority,
                dedup_key=dedup_key,
            )
        )

    def send_many(self, messages: Iterable[Message]) -> tuple[str, ...]:
        """Stores several half messages, all or none of them.

        Returns:
            Their ids, in their order.

        Raises:
            RequestRefused: The broker refused one of them; none is part of the transaction.
            PrepareUnconfirmed: It is unknown whether they were stored. The transaction can only be rolled back.
        """
        self._before_send()
        return self._runner.run(self._core.send_many(messages))

    def _before_send(self) -> None:
        """Called before messages are stored, by whoever sends them."""
        return

    def rollback(self, reason: str = "") -> None:
        """Drops the messages now; the rest of the block cannot send, and its end does nothing.

        Args:
            reason: Reason, up to 500 characters; recorded with the transaction.

        Raises:
            TransactionRefused: The broker recorded another outcome.
            RequestRefused: The broker refused the reason; a check will decide.
            VerdictUnconfirmed: It is unknown whether the rollback was recorded.
            TypeError: The reason is no text; nothing was done.
            ValueError: The reason cannot be written in UTF-8; nothing was done.
        """
        self._runner.run(self._core.rollback(reason))

    def __enter__(self) -> Self:
        """Begins the block."""
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Gives the verdict."""
        self._runner.run(self._core.finish(exc))
