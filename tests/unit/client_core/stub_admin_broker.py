"""A broker for operators that remembers what it was asked and answers as a test wants; real gRPC over loopback."""

# ruff: noqa: N802 - the names are those of the protocol
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import grpc

from halfmq.v1 import admin_pb2 as pb
from halfmq.v1 import admin_pb2_grpc, message_pb2, query_pb2, query_pb2_grpc, transaction_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unit.producer_sdk.stub_broker import Failure

PAGES = {"": (range(3), "a"), "a": (range(3, 5), "b"), "b": (range(0), "")}


class StubAdminBroker(admin_pb2_grpc.AdminServiceServicer, query_pb2_grpc.QueryServiceServicer):
    """Says yes to everything unless it was told otherwise; what it creates has the settings it was asked for."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.failures: list[Failure] = []
        self.redrive_breaks: Failure | None = None

    async def __aenter__(self) -> Self:
        self.server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        admin_pb2_grpc.add_AdminServiceServicer_to_server(self, self.server)
        query_pb2_grpc.add_QueryServiceServicer_to_server(self, self.server)
        self.endpoint = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop(0)

    async def _take(self, request: Any, context: Any) -> None:
        taken = type(request)()
        taken.CopyFrom(request)
        self.requests.append(taken)
        if self.failures:
            await context.abort(*self.failures.pop(0))

    def _group(self, name: str) -> pb.ConsumerGroup:
        group = pb.ConsumerGroup(name=name, max_attempts=17, mode=pb.GROUP_MODE_CLUSTERING, pause_reason="stop")
        group.paused_at.FromSeconds(1_700_000_000)
        group.start.boundary = message_pb2.BOUNDARY_LATEST
        group.filters.add(topic="orders").filter.tags = "paid"
        group.filters.add(topic="audit").filter.sql = "a = 1"
        return group

    def _progress(self, topic: str, queue: int) -> pb.GroupProgress:
        progress = pb.GroupProgress(topic=topic, queue=queue, committed_offset=3, next_offset=5, max_offset=9)
        progress.in_flight, progress.lag = 2, 6
        if queue:
            progress.lag_time.FromMilliseconds(1500)
        return progress

    def _message(self, topic: str, offset: int) -> message_pb2.LogMessage:
        return message_pb2.LogMessage(topic=topic, offset=offset, body=b"x", message_id=f"id-{offset}")

    async def CreateTopic(self, request: Any, context: Any) -> pb.CreateTopicResponse:
        await self._take(request, context)
        return pb.CreateTopicResponse(topic=request.topic)

    async def DescribeTopic(self, request: Any, context: Any) -> pb.DescribeTopicResponse:
        await self._take(request, context)
        topic = pb.Topic(name=request.topic, queue_count=8, priority_levels=1)
        topic.retention.FromSeconds(3600)
        topic.created_at.FromSeconds(1_700_000_000)
        return pb.DescribeTopicResponse(topic=topic)

    async def UpdateTopic(self, request: Any, context: Any) -> pb.UpdateTopicResponse:
        await self._take(request, context)
        return pb.UpdateTopicResponse(topic=pb.Topic(name=request.topic, queue_count=request.queue_count))

    async def DeleteTopic(self, request: Any, context: Any) -> pb.DeleteTopicResponse:
        await self._take(request, context)
        return pb.DeleteTopicResponse()

    async def CreateGroup(self, request: Any, context: Any) -> pb.CreateGroupResponse:
        await self._take(request, context)
        return pb.CreateGroupResponse(group=request.group)

    async def DescribeGroup(self, request: Any, context: Any) -> pb.DescribeGroupResponse:
        await self._take(request, context)
        progress = [self._progress("orders", 0), self._progress("orders", 1), self._progress("audit", 0)]
        return pb.DescribeGroupResponse(group=self._group(request.group), progress=progress)

    async def UpdateGroup(self, request: Any, context: Any) -> pb.UpdateGroupResponse:
        await self._take(request, context)
        return pb.UpdateGroupResponse(group=self._group(request.group))

    async def DeleteGroup(self, request: Any, context: Any) -> pb.DeleteGroupResponse:
        await self._take(request, context)
        return pb.DeleteGroupResponse()

    async def PauseGroup(self, request: Any, context: Any) -> pb.PauseGroupResponse:
        await self._take(request, context)
        group = self._group(request.group)
        if request.resume:
            group.ClearField("paused_at")
        return pb.PauseGroupResponse(group=group)

    async def SeekGroup(self, request: Any, context: Any) -> pb.SeekGroupResponse:
        await self._take(request, context)
        return pb.SeekGroupResponse(progress=[self._progress(request.topic, request.queue)])

    async def SetFilter(self, request: Any, context: Any) -> pb.SetFilterResponse:
        await self._take(request, context)
        return pb.SetFilterResponse(group=self._group(request.group))

    async def ListDeadLetters(self, request: Any, context: Any) -> pb.ListDeadLettersResponse:
        await self._take(request, context)
        offsets, following = PAGES[request.page_token]
        response = pb.ListDeadLettersResponse(next_page_token=following)
        for offset in offsets:
            origin = message_pb2.LogPosition(topic="orders", queue=1, offset=offset, message_id=f"id-{offset}")
            letter = response.dead_letters.add(origin=origin, reason="boom", attempts=17)
            letter.message.CopyFrom(self._message(f"%DLQ%{request.group}", offset))
            if offset == 0:
                letter.redriven_at.FromSeconds(1_700_000_000)
        return response

    async def RedriveDeadLetters(self, request: Any, context: Any) -> AsyncIterator[pb.RedriveDeadLettersResponse]:
        await self._take(request, context)
        for step in range(1, 4):
            yield pb.RedriveDeadLettersResponse(
                examined=step, redriven=step - 1, republished=1, left=0, total=3, done=step == 3
            )
            if step == 2 and self.redrive_breaks is not None:
                await context.abort(*self.redrive_breaks)

    async def GetMessage(self, request: Any, context: Any) -> query_pb2.GetMessageResponse:
        await self._take(request, context)
        found = query_pb2.GetMessageResponse(state=transaction_pb2.TRANSACTION_STATE_COMMITTED)
        if request.message_id.endswith(".1"):
            found.waiting.CopyFrom(message_pb2.Message(topic="orders", text="later", dedup_key="k"))
            found.scheduled_at.FromSeconds(1_900_000_000)
        else:
            found.message.CopyFrom(self._message("orders", 7))
        return found

    async def FindMessages(self, request: Any, context: Any) -> query_pb2.FindMessagesResponse:
        await self._take(request, context)
        offsets, following = PAGES[request.page_token]
        messages = [self._message(request.topic, offset) for offset in offsets]
        return query_pb2.FindMessagesResponse(messages=messages, next_page_token=following)

    async def GetTimeline(self, request: Any, context: Any) -> query_pb2.GetTimelineResponse:
        await self._take(request, context)
        response = query_pb2.GetTimelineResponse()
        event = response.events.add(
            type=query_pb2.TIMELINE_EVENT_TYPE_CHECK_ANSWERED,
            group="shop",
            client_id="me",
            number=2,
            verdict=transaction_pb2.CHECK_VERDICT_COMMIT,
            source=transaction_pb2.VERDICT_SOURCE_CHECK,
            reason="it was there",
        )
        event.happened_at.FromSeconds(1_700_000_000)
        response.events.add(type=query_pb2.TIMELINE_EVENT_TYPE_RELEASED).position.offset = 7
        response.events.add(type=99)  # type: ignore[arg-type]
        return response
