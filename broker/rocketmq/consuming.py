"""Consumers' calls: receiving, acknowledging, nacking."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeVar

from broker.domain.access import Action, Kind
from broker.domain.filters import FilterKind, compile_filter
from broker.domain.lease import Receipt
from broker.errors import BrokerError, StaleReceipt
from broker.rocketmq.codes import OK, BadRequest, status, status_of
from broker.rocketmq.messages import delivered, larger_than
from broker.rocketmq.names import name_of
from broker.rocketmq.producing import together
from broker.rocketmq.protocol import Code, definition_pb2, service_pb2
from broker.rocketmq.settings import LARGEST_BATCH, LONGEST_POLLING, SECOND
from broker.services.consuming.subscription import SubscribeRequest
from broker.services.rights import CALLER
from broker.wire.throttled_log import ThrottledLog
from broker.wire.times import fill_timestamp, micros

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from broker.domain.clock import Clock
    from broker.domain.filters import Filter
    from broker.ports.delivery import Delivered, HandedOut
    from broker.rocketmq.calls import Caller
    from broker.rocketmq.clients import Clients
    from broker.rocketmq.renewals import Renewals
    from broker.services.catalog import Catalog
    from broker.services.consuming.config import DeliveryConfig
    from broker.services.consuming.delivery import DeliveryService
    from broker.services.consuming.receipts import ReceiptService
    from broker.services.consuming.subscription import Subscription
    from broker.services.judges import Judge
    from broker.services.operating.groups import GroupService

logger = logging.getLogger("halfmq.rocketmq")
_of_clients = ThrottledLog(logger)

ANSWERING = 0.5
"""Seconds of a call's deadline reserved for its answer."""
LONGEST_WAIT = 60 * SECOND
_REMEMBERED, _MOST_ATTEMPTS = 20_000, 4_000
_FILTERS_REMEMBERED = 4 * 1024 * 1024
"""Characters of the filters in cached subscriptions; compiled they take up to 30 times as many bytes."""
_ALL = {"", "*"}
_LITTLE = 4 * 1024 * 1024
_TOO_LARGE = "larger than its consumer can take in, which is 4 MiB with all that belongs to a message"
_Key = tuple[str, str, str, int, bool]
_Name = TypeVar("_Name")
_What = TypeVar("_What")


class Consuming:
    """The calls of consumers."""

    def __init__(
        self,
        delivery: DeliveryService,
        receipts: ReceiptService,
        config: DeliveryConfig,
        groups: GroupService,
        catalog: Catalog,
        clients: Clients,
        renewals: Renewals,
        clock: Clock,
        host: str,
        shortest_invisible: int,
    ) -> None:
        """Takes the services, the clients, this broker's name, and the shortest invisible duration."""
        self._delivery = delivery
        self._receipts = receipts
        self._config = config
        self._groups = groups
        self._catalog = catalog
        self._clients = clients
        self._renewals = renewals
        self._clock = clock
        self._host = host
        self._shortest_invisible = shortest_invisible
        self._subscriptions: OrderedDict[_Key, tuple[Subscription, int]] = OrderedDict()
        self._filters_size = 0
        self._stated: OrderedDict[tuple[str, str, str], bytes] = OrderedDict()
        self._acked: OrderedDict[str, None] = OrderedDict()
        self._attempts: OrderedDict[tuple[str, str, str, str], list[HandedOut]] = OrderedDict()

    async def receive(self, request: Any, caller: Caller) -> AsyncGenerator[Any, None]:
        """Delivers up to a batch of messages, and waits for the first."""
        # It may have sent its settings before this broker was restarted.
        kind = definition_pb2.ClientType.PUSH_CONSUMER if request.auto_renew else 0
        client = self._clients.heard(caller.named(), kind)
        topic = name_of(request.message_queue.topic, caller.namespace)
        group = name_of(request.group, caller.namespace)
        # A push consumer holds its messages as long as it handles them; it does not name a duration.
        lease_time = self._config.lease_time
        if not request.auto_renew:
            lease_time = self._invisible_time(request.invisible_duration)
        subscription = await self._subscription(caller.client_id, group, topic, lease_time, request.filter_expression)
        # A client that repeats the attempt id did not receive the messages of the first call.
        attempt = (caller.client_id, group, topic, request.attempt_id)
        if lost := self._attempts.pop(attempt, None):
            self._renewals.forget(lost)
            await subscription.give_back(lost)
        limit = max(1, min(request.batch_size or LARGEST_BATCH, LARGEST_BATCH))
        parts = await subscription.wait_and_take(limit, polling_time(request, caller, client.polling))
        handed_out = [part.handed_out() for part in parts]
        if handed_out and request.auto_renew:
            self._renewals.keep(caller.client_id, parts)
        if request.attempt_id and handed_out:
            _remember(self._attempts, attempt, handed_out, most=_MOST_ATTEMPTS)
        sent = False
        try:
            if client.takes_in_little:
                parts = await self._small_ones(parts, caller)
            if not parts:
                yield service_pb2.ReceiveMessageResponse(status=status(Code.MESSAGE_NOT_FOUND, "no new message"))
            else:
                yield service_pb2.ReceiveMessageResponse(status=OK)
                for message in delivered(parts, caller.namespace, lease_time, self._host):
                    yield service_pb2.ReceiveMessageResponse(message=message)
            last = service_pb2.ReceiveMessageResponse()
            fill_timestamp(last.delivery_timestamp, self._clock.now())
            yield last
            sent = True
        finally:
            if not sent and handed_out:
                self._renewals.forget(handed_out)
                await asyncio.shield(subscription.give_back(handed_out))

    async def _small_ones(self, parts: Sequence[Delivered], caller: Caller) -> list[Delivered]:
        """The messages that a client with a small message limit can receive; larger ones would fail the whole answer.

        The others count as failed: they are delivered again after the group's delay, possibly to another client, and
        finally become dead letters. In the middle of a message group this happens at once; the rest of the group
        continues.
        """
        kept: list[Delivered] = []
        failed: list[str] = []
        given_up: list[str] = []
        for part in parts:
            large = {
                message.offset: Receipt(part.lease_id, part.token, message.offset).handle
                for message in part.messages
                if larger_than(_LITTLE, part, message, caller.namespace, self._host)
            }
            if not large:
                kept.append(part)
            elif part.ordered and part.messages[0].offset in large:
                failed.append(large[part.messages[0].offset])
            else:
                (given_up if part.ordered else failed).extend(large.values())
                small = [message for message in part.messages if message.offset not in large]
                kept += [replace(part, messages=small)] if small else []
        for some, at_once in ((failed, False), (given_up, True)):
            if some:
                await self._receipts.nack(some, reason=_TOO_LARGE, given_up=at_once)
                self._renewals.settled(some)
        return kept

    def _invisible_time(self, duration: Any) -> int:
        time, longest = micros(duration, "invisible_duration"), self._config.longest_lease
        if self._shortest_invisible <= time <= longest:
            return time
        # RocketMQ's texts, for clients that match them.
        wrong = "the invisibleTime is too small" if time <= longest else "the invisibleTime is too large"
        raise BadRequest(
            f"{wrong}: {time / 1e6:g} s; {self._shortest_invisible / 1e6:g} s (the broker's rocketmq_min_invisible) to"
            f" {longest / 1e6:g} s are allowed.",
            Code.ILLEGAL_INVISIBLE_TIME,
            "invisible_duration",
        )

    async def _subscription(
        self, client_id: str, group: str, topic: str, lease_time: int, expression: Any
    ) -> Subscription:
        """The client's subscription, with its filter.

        Clients send their filter in every call. Here a filter belongs to the group: a client that sends a new one sets
        it, and repeating it changes nothing.
        """
        in_order = (await self._catalog.group(group)).settings.fifo
        key = (client_id, group, topic, lease_time, in_order)
        stated = (expression.type, expression.expression.strip())
        # Filters can be long, and there can be many clients.
        seen = blake2b(f"{stated[0]} {stated[1]}".encode(), digest_size=16).digest()
        new = self._stated.get(key[:3]) != seen
        known = self._subscriptions.get(key)
        if known is not None and not new:
            self._subscriptions.move_to_end(key)
            return known[0]
        wanted = filter_of(*stated)
        if new and wanted is None:
            await self._groups.drop_filter(group, topic)
        filters = {topic: wanted} if new and wanted is not None else {}
        asked = SubscribeRequest(
            group, [topic], client_id, lease_time, filters, replace_filters=True, one_by_one=not in_order
        )
        made = await self._delivery.subscribe(asked)
        self._keep(key, made, len(stated[1]) if filters else 0)
        _remember(self._stated, key[:3], seen)
        return made

    def _keep(self, key: _Key, made: Subscription, size: int) -> None:
        """Caches a subscription, with the size of its filter; evicts the oldest ones beyond the limit."""
        if key in self._subscriptions:
            self._filters_size -= self._subscriptions.pop(key)[1]
        self._subscriptions[key] = (made, size)
        self._filters_size += size
        while len(self._subscriptions) > _REMEMBERED or self._filters_size > _FILTERS_REMEMBERED:
            _, (_, gone) = self._subscriptions.popitem(last=False)
            self._filters_size -= gone

    async def ack(self, request: Any, caller: Caller) -> Any:
        """Acknowledges messages, each with its own result."""
        self._clients.heard(caller)
        if not request.entries:
            raise BadRequest("There is nothing to acknowledge.", Code.BAD_REQUEST, "entries")
        handles = [entry.receipt_handle for entry in request.entries]
        open_ones = [handle for handle in handles if handle not in self._acked]
        said = await self._receipts.ack(open_ones, may=_may_settle()) if open_ones else {}
        good = [handle for handle in open_ones if handle not in said]
        self._renewals.settled(good)
        for handle in good:
            _remember(self._acked, handle, None)
        response = service_pb2.AckMessageResponse()
        for entry in request.entries:
            refused = said.get(entry.receipt_handle)
            response.entries.add(
                message_id=entry.message_id,
                receipt_handle=entry.receipt_handle,
                status=status_of(refused) if isinstance(refused, BrokerError) else OK,
            )
        response.status.CopyFrom(together([entry.status for entry in response.entries]))
        return response

    async def change_invisible_duration(self, request: Any, caller: Caller) -> Any:
        """Extends a message's lease, or nacks it with a delay, depending on the type of consumer."""
        client = await self._clients.introduced(caller)
        handle = request.receipt_handle
        time = micros(request.invisible_duration, "invisible_duration")
        if client.pushes:
            delay = None if client.reads_seconds_as_milliseconds else time
            said = await self._receipts.nack([handle], delay=delay, may=_may_settle())
        else:
            said = await self._receipts.hold([handle], time, may=_may_settle())
        outcome = said.get(handle)
        response = service_pb2.ChangeInvisibleDurationResponse(status=OK, receipt_handle=handle)
        if isinstance(outcome, BrokerError):
            # With the handle: some clients take it from the answer, whatever its status.
            response.status.CopyFrom(status_of(outcome))
            return response
        self._renewals.settled([handle])
        if outcome is not None and outcome.receipt_handle:
            response.receipt_handle = outcome.receipt_handle
        return response

    async def forward_to_dead_letters(self, request: Any, caller: Caller) -> Any:
        """Moves a message to the dead letters."""
        self._clients.heard(caller)
        handle = request.receipt_handle
        reason = f"given up by its consumer after {request.delivery_attempt} attempts"
        outcome = (await self._receipts.nack([handle], reason=reason, given_up=True, may=_may_settle())).get(handle)
        if isinstance(outcome, StaleReceipt):
            # The client no longer owns it: settled, or delivered again. Otherwise clients would retry forever.
            text = "a message was not given up by %s: %s"
            about = {"client_id": caller.client_id, "group": name_of(request.group, caller.namespace)}
            _of_clients.info(text, caller.client_id, outcome.message, message_id=request.message_id, **about)
        elif isinstance(outcome, BrokerError):
            raise outcome
        self._renewals.settled([handle])
        return service_pb2.ForwardMessageToDeadLetterQueueResponse(status=OK)


def filter_of(kind: int, expression: str) -> Filter | None:
    """A filter of a client; None: all messages."""
    if kind == definition_pb2.FilterType.SQL:
        return compile_filter(FilterKind.SQL, expression, "filter_expression")
    if expression in _ALL:
        return None
    found = compile_filter(FilterKind.TAG, expression, "filter_expression")
    return None if found.expression == "*" else found


def _remember(memory: OrderedDict[_Name, _What], name: _Name, what: _What, most: int = _REMEMBERED) -> None:
    memory[name] = what
    if len(memory) > most:
        memory.popitem(last=False)


def polling_time(request: Any, caller: Caller, told: int = 0) -> int:
    """Microseconds that a call may wait: as requested, but leaving time for its answer.

    Go's simple consumer does not request a time: it is in its settings.
    """
    wait = min(told or LONGEST_POLLING, LONGEST_WAIT)
    if request.HasField("long_polling_timeout"):
        wait = min(micros(request.long_polling_timeout, "wait"), LONGEST_WAIT)
    if caller.seconds_left is not None:
        wait = min(wait, max(0, int((caller.seconds_left - ANSWERING) * SECOND)))
    return wait


def _may_settle() -> Judge | None:
    return CALLER.get().judge(Action.SUB, Kind.GROUP)
