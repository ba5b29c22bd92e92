"""Forwarding: messages are sent and those that they were made from are acknowledged, in one step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from broker.errors import InvalidArgument, Moved, NotFound, StaleReceipt
from broker.ports.log import SendWork
from broker.services.consuming.receipts import acks_of
from broker.services.ids import new_id
from broker.services.positions import Released
from broker.services.producing.validation import names_deleted_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.lease import Receipt
    from broker.ports.delivery import AckWork, ForwardStore
    from broker.services.judges import Judge
    from broker.services.producing.sending import OrdinaryMessage, SendService, Sent
    from broker.services.producing.validation import MessageValidator
    from broker.services.rights import Numbered
    from broker.services.wakeups import Wakeups


class ForwardService:
    """Sends and acknowledges in one step."""

    def __init__(
        self,
        store: ForwardStore,
        sending: SendService,
        validator: MessageValidator,
        wakeups: Wakeups,
        groups: Numbered,
    ) -> None:
        """Takes the store, the sending of messages, the validator, the wake-ups, and all groups, for judges."""
        self._groups = groups
        self._store = store
        self._sending = sending
        self._validator = validator
        self._wakeups = wakeups

    async def send_and_ack(
        self, messages: Sequence[OrdinaryMessage], handles: Sequence[str], may: Judge | None = None
    ) -> list[Sent]:
        """Stores all messages and acknowledges all received ones, or nothing.

        Args:
            messages: what to send.
            handles: receipt handles.
            may: the consumer groups that whoever asks may settle for; of others it knows no receipts. None: all.

        Raises:
            BrokerError: a message or a receipt was refused, and so was all of it.
        """
        acks = acks_of(handles)
        if may is None:
            return await self._send_and_ack(messages, acks)
        allowed = await self._groups.allowed(may)
        try:
            return await self._send_and_ack(messages, [replace(ack, groups=allowed) for ack in acks])
        except (StaleReceipt, Moved):
            # A group may be new, and this broker not know it yet.
            if (now := await self._groups.allowed(may, again=True)) == allowed:
                raise
            return await self._send_and_ack(messages, [replace(ack, groups=now) for ack in acks])

    async def has_receipts(self, receipts: Sequence[Receipt], may: Judge | None = None) -> bool:
        """Whether some of these receipts are of leases that are open; `may` as for sends.

        Raises:
            Moved: they may have left for another cell.
        """
        if may is None:
            return await self._store.has_receipts(receipts)
        allowed = await self._groups.allowed(may)
        moved: Moved | None = None
        try:
            if await self._store.has_receipts(receipts, allowed):
                return True
        except Moved as error:
            moved = error.as_outcome()
        if (now := await self._groups.allowed(may, again=True)) != allowed:
            return await self._store.has_receipts(receipts, now)
        if moved is not None:
            raise moved
        return False

    async def _send_and_ack(self, messages: Sequence[OrdinaryMessage], acks: Sequence[AckWork]) -> list[Sent]:
        ids = [item.message_id or new_id() for item in messages]
        try:
            work = await self._work(ids, messages)
            done = await self._store.send_and_ack(work, acks)
        except NotFound as error:
            if not names_deleted_topic(error):
                raise
            # Another broker deleted a topic that is cached here; it may have been created again.
            self._validator.forget_topics([item.message.topic for item in messages])
            work = await self._work(ids, messages)
            done = await self._store.send_and_ack(work, acks)
        released = Released()
        sent = [await self._sending.sent(item, place, released) for item, place in zip(work, done.places, strict=True)]
        self._wakeups.arrived(released)
        self._wakeups.leases_free(done.frees)
        self._sending.tell_stored([item.message for item in work])
        return sent

    async def _work(self, ids: Sequence[bytes], messages: Sequence[OrdinaryMessage]) -> list[SendWork]:
        now = self._validator.now()
        work = []
        for index, (own_id, item) in enumerate(zip(ids, messages, strict=True)):
            try:
                work.append(SendWork(own_id, *await self._validator.destination(item.message, now), item.message))
            except InvalidArgument as error:
                raise error.within(f"messages[{index}]") from None
        return work
