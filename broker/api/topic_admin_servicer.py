"""AdminService: the part for topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api.converters import topics
from broker.domain.access import Action, Kind
from broker.domain.cell import check_only
from broker.services.rights import CALLER
from halfmq.v1 import admin_pb2, admin_pb2_grpc

if TYPE_CHECKING:
    import grpc

    from broker.services.operating.topics import TopicService

    _Context = grpc.aio.ServicerContext[object, object]


class TopicAdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """Administration of topics."""

    _topics: TopicService

    async def CreateTopic(
        self, request: admin_pb2.CreateTopicRequest, context: _Context
    ) -> admin_pb2.CreateTopicResponse:
        """Creates a topic."""
        check_only(request.cell)
        wanted = request.topic
        topic = await self._topics.create(wanted.name, topics.new_topic(wanted), wanted.priority_levels)
        return admin_pb2.CreateTopicResponse(topic=topics.topic(topic))

    async def UpdateTopic(
        self, request: admin_pb2.UpdateTopicRequest, context: _Context
    ) -> admin_pb2.UpdateTopicResponse:
        """Changes a topic."""
        topic = await self._topics.update(request.topic, topics.change(request))
        return admin_pb2.UpdateTopicResponse(topic=topics.topic(topic))

    async def ListTopics(self, request: admin_pb2.ListTopicsRequest, context: _Context) -> admin_pb2.ListTopicsResponse:
        """Lists topics."""
        may = CALLER.get().judge(Action.LIST, Kind.TOPIC)
        found, following = await self._topics.topics(request.page_token, request.page_size, may)
        return admin_pb2.ListTopicsResponse(topics=[topics.topic(topic) for topic in found], next_page_token=following)

    async def DescribeTopic(
        self, request: admin_pb2.DescribeTopicRequest, context: _Context
    ) -> admin_pb2.DescribeTopicResponse:
        """Returns a topic's settings and queues."""
        topic = await self._topics.topic(request.topic)
        response = admin_pb2.DescribeTopicResponse(topic=topics.topic(topic))
        for state in await self._topics.queue_states(request.topic):
            response.queues.add(
                queue=state.queue_no,
                min_offset=state.min_offset,
                max_offset=state.max_offset,
                priority=state.priority,
                stored_bytes=state.stored_bytes,
                messages=state.kept,
            )
        return response

    async def DeleteTopic(
        self, request: admin_pb2.DeleteTopicRequest, context: _Context
    ) -> admin_pb2.DeleteTopicResponse:
        """Deletes a topic."""
        await self._topics.delete(request.topic)
        return admin_pb2.DeleteTopicResponse()
