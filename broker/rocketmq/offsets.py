"""Reading by offset, for clients that keep their own position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.domain.limits import check_group_name
from broker.errors import OffsetLost
from broker.rocketmq.codes import OK, BadRequest, status, status_of
from broker.rocketmq.consuming import filter_of, polling_time
from broker.rocketmq.messages import log_message
from broker.rocketmq.names import name_of
from broker.rocketmq.protocol import Code, definition_pb2, service_pb2
from broker.rocketmq.settings import LARGEST_BATCH
from broker.wire.times import micros_of_time

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from broker.rocketmq.calls import Caller
    from broker.services.consuming.reading import QueueReader
    from broker.services.operating.groups import GroupService
    from broker.services.operating.topics import TopicService

_Policy = definition_pb2.QueryOffsetPolicy


class Offsets:
    """The calls about offsets."""

    def __init__(self, reader: QueueReader, groups: GroupService, topics: TopicService, host: str) -> None:
        """Takes the services, and this broker's name."""
        self._reader = reader
        self._groups = groups
        self._topics = topics
        self._host = host

    async def pull(self, request: Any, caller: Caller) -> AsyncGenerator[Any, None]:
        """Reads a queue from an offset on."""
        topic, queue_no = _queue(request, caller)
        wanted = filter_of(request.filter_expression.type, request.filter_expression.expression.strip())
        limit = max(1, min(request.batch_size or LARGEST_BATCH, LARGEST_BATCH))
        wait = polling_time(request, caller)
        try:
            piece = await self._reader.read_queue(topic, queue_no, request.offset, limit, wait, wanted)
        except OffsetLost as error:
            # As after a pull: the client goes on from there.
            yield service_pb2.PullMessageResponse(status=status_of(error))
            yield service_pb2.PullMessageResponse(next_offset=error.first)
            return
        found = status(Code.MESSAGE_NOT_FOUND, "no new message") if not piece.messages else OK
        yield service_pb2.PullMessageResponse(status=found)
        for message in piece.messages:
            yield service_pb2.PullMessageResponse(message=log_message(message, caller.namespace, self._host))
        yield service_pb2.PullMessageResponse(next_offset=max(request.offset, piece.next_offset))

    async def update(self, request: Any, caller: Caller) -> Any:
        """Records a group's progress in a queue."""
        topic, queue_no = _queue(request, caller)
        await self._groups.commit(name_of(request.group, caller.namespace), topic, [(queue_no, request.offset)])
        return service_pb2.UpdateOffsetResponse(status=OK)

    async def get(self, request: Any, caller: Caller) -> Any:
        """Returns a group's progress in a queue."""
        topic, queue_no = _queue(request, caller)
        group = name_of(request.group, caller.namespace)
        check_group_name(group, "consumer_group")
        states = await self._topics.queue_states(topic, group)
        offset = next((state.committed_offset for state in states if state.queue_no == queue_no), None)
        if offset is None:
            raise BadRequest(f"The topic {topic!r} has no queue {queue_no}.", Code.OFFSET_NOT_FOUND, "message_queue.id")
        return service_pb2.GetOffsetResponse(status=OK, offset=offset)

    async def query(self, request: Any, caller: Caller) -> Any:
        """Returns the first or last offset of a queue, or the offset at a time."""
        topic, queue_no = _queue(request, caller)
        states = {state.queue_no: state for state in await self._topics.queue_states(topic)}
        if queue_no not in states:
            raise BadRequest(f"The topic {topic!r} has no queue {queue_no}.", Code.OFFSET_NOT_FOUND, "message_queue.id")
        if request.query_offset_policy == _Policy.TIMESTAMP:
            if not request.HasField("timestamp"):
                raise BadRequest("A timestamp is needed.", Code.BAD_REQUEST, "timestamp")
            time = micros_of_time(request.timestamp, "timestamp")
            offset = (await self._topics.offsets_at(topic, time))[queue_no]
        elif request.query_offset_policy == _Policy.END:
            offset = states[queue_no].max_offset
        else:
            offset = states[queue_no].min_offset
        return service_pb2.QueryOffsetResponse(status=OK, offset=offset)


def _queue(request: Any, caller: Caller) -> tuple[str, int]:
    if request.message_queue.id < 0:
        raise BadRequest("A queue is needed, from 0 on.", Code.BAD_REQUEST, "message_queue.id")
    return name_of(request.message_queue.topic, caller.namespace), request.message_queue.id
