"""Joining consumer groups."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from broker.domain.group import GroupMode
from broker.domain.ids import format_id
from broker.domain.limits import MAX_TOPICS_OF_CLIENT, check_client_id, check_count
from broker.errors import InvalidArgument, NotFound
from broker.ports.delivery import JoinWork
from broker.ports.observer import NO_OBSERVER, Observer
from broker.ports.tracer import NO_TRACER, Tracer
from broker.services.consuming.subscription import Subscription
from broker.services.ids import new_id

if TYPE_CHECKING:
    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.ports.delivery import LeaseStore, ReceiptStore
    from broker.services.catalog import Catalog
    from broker.services.consuming.config import DeliveryConfig
    from broker.services.consuming.subscription import SubscribeRequest
    from broker.services.wakeups import Wakeups


class DeliveryService:
    """Joins consumers to their groups."""

    def __init__(
        self,
        leases: LeaseStore,
        receipts: ReceiptStore,
        catalog: Catalog,
        wakeups: Wakeups,
        config: DeliveryConfig,
        observer: Observer = NO_OBSERVER,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """Takes the ports of leases and receipts, the catalog, the wake-ups, the bounds, observer and tracer."""
        self._observer = observer
        self._tracer = tracer
        self._open_streams: set[Subscription] = set()
        self._leases = leases
        self._receipts = receipts
        self._catalog = catalog
        self._wakeups = wakeups
        self._config = config

    async def subscribe(self, request: SubscribeRequest) -> Subscription:
        """Joins a group on some topics.

        Raises:
            InvalidArgument: a name, a filter, the client id or the time is not allowed.
            NotFound: the group or a topic does not exist.
            Refused: the group has another filter.
        """
        check_count(len(request.topics), MAX_TOPICS_OF_CLIENT, "topics")
        check_client_id(request.client_id)
        for name in request.filters:
            if name not in request.topics:
                raise InvalidArgument(f"The topic {name!r} is not among the topics to read.", field="filters.topic")
        request = replace(
            request,
            client_id=request.client_id or f"consumer-{format_id(new_id())}",
            named=bool(request.client_id),
            lease_time=self._config.lease_time_of(request.lease_time, "lease_duration"),
        )
        return Subscription(
            request,
            await self.join(request),
            leases=self._leases,
            receipts=self._receipts,
            join=self.join,
            wakeups=self._wakeups,
            config=self._config,
            tracer=self._tracer,
            observer=self._observer,
            open_streams=self._open_streams,
        )

    def streams(self) -> dict[str, tuple[int, int]]:
        """Consumers with a stream here, and their credits, by group; may be asked in any thread."""
        found: dict[str, tuple[int, int]] = {}
        for each in list(self._open_streams):
            streams, credits_ = found.get(each.group_name, (0, 0))
            found[each.group_name] = streams + 1, credits_ + each.credits
        return found

    async def join(self, request: SubscribeRequest) -> tuple[ConsumerGroup, list[Topic]]:
        """The group to claim for (a member of it, when it is broadcasting), and the topics.

        Raises:
            NotFound: the group or a topic does not exist.
            Refused: the group has another filter.
        """
        try:
            return await self._join(request)
        except NotFound:
            # Deleted through another broker, and perhaps re-created since it was cached here.
            self._catalog.forget(request.group, request.topics)
            return await self._join(request)

    async def _join(self, request: SubscribeRequest) -> tuple[ConsumerGroup, list[Topic]]:
        # A group is created for topics that are there: if they have just moved to another cell, it would stay behind.
        if await self._catalog.find_group(request.group) is None:
            self._catalog.forget_topics(request.topics)
        topics = {
            name: await self._catalog.topic(name, f"topics[{index}]") for index, name in enumerate(request.topics)
        }
        group = await self._catalog.group(request.group)
        if group.settings.mode is GroupMode.BROADCASTING and not request.named:
            raise InvalidArgument(
                f"In the broadcasting group {group.name!r} every consumer keeps its place under its name; give one.",
                field="client_id",
            )
        joined = await self._leases.join(
            JoinWork(
                group,
                list(topics.values()),
                request.client_id,
                {topics[name].topic_id: each for name, each in request.filters.items()},
                request.replace_filters,
                request.start_at,
            )
        )
        return joined, list(topics.values())
