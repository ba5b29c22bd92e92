"""Forwarding: messages are sent and those that they were made from are acknowledged, in one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.ids import message_id
from broker.errors import InvalidArgument, NotFound
from broker.ports.log import Duplicate, SendWork
from broker.services.consuming.receipts import acks_of
from broker.services.ids import new_id
from broker.services.positions import Released
from broker.services.producing.sending import Sent
from broker.services.producing.validation import names_deleted_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.limits import Limits
    from broker.ports.delivery import Forwarded, ForwardStore
    from broker.services.positions import Positions
    from broker.services.producing.sending import OrdinaryMessage, SendService
    from broker.services.producing.validation import MessageValidator
    from broker.services.wakeups import Wakeups


class ForwardService:
    """Sends and acknowledges in one step."""

    def __init__(
        self,
        store: ForwardStore,
        sending: SendService,
        validator: MessageValidator,
        positions: Positions,
        wakeups: Wakeups,
    ) -> None:
        """Takes the store, the sending of ordinary messages, the validator, the positions, and the wake-ups."""
        self._store = store
        self._sending = sending
        self._validator = validator
        self._positions = positions
        self._wakeups = wakeups

    @property
    def limits(self) -> Limits:
        """Limits of messages and requests."""
        return self._validator.limits

    async def send_and_ack(self, messages: Sequence[OrdinaryMessage], handles: Sequence[str]) -> list[Sent]:
        """Stores all messages and acknowledges all received ones, or nothing.

        Raises:
            BrokerError: a message or a receipt was refused, and so was all of it.
        """
        self.limits.check_items(len(messages), "messages")
        acks = acks_of(handles)
        ids = [item.message_id or new_id() for item in messages]
        try:
            done = await self._store.send_and_ack(await self._work(ids, messages), acks)
        except NotFound as error:
            if not names_deleted_topic(error):
                raise
            # Another broker deleted a topic that is cached here; it may have been created again.
            self._validator.forget_topics([item.message.topic for item in messages])
            done = await self._store.send_and_ack(await self._work(ids, messages), acks)
        return await self._sent(done, ids, messages)

    async def _work(self, ids: Sequence[bytes], messages: Sequence[OrdinaryMessage]) -> list[SendWork]:
        now = self._validator.now()
        work = []
        for index, (own_id, item) in enumerate(zip(ids, messages, strict=True)):
            try:
                work.append(SendWork(own_id, *await self._validator.destination(item.message, now), item.message))
            except InvalidArgument as error:
                raise error.within(f"messages[{index}]") from None
        return work

    async def _sent(self, done: Forwarded, ids: Sequence[bytes], messages: Sequence[OrdinaryMessage]) -> list[Sent]:
        released = Released()
        sent = []
        for own_id, item, place in zip(ids, messages, done.places, strict=True):
            if isinstance(place, Duplicate):
                sent.append(Sent(await self._sending.position_of_owner(item.message.topic, place), duplicate=True))
                continue
            position = await self._positions.of(place, message_id(own_id, 0), released)
            position.topic = item.message.topic
            sent.append(Sent(position))
        self._wakeups.arrived(released)
        self._wakeups.leases_free(done.frees)
        return sent
