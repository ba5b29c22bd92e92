"""AdminService: the part for consumer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.api.converters import filters, groups
from broker.domain.access import Action, Kind
from broker.domain.cell import check_only
from broker.services.rights import CALLER
from broker.wire import times
from halfmq.v1 import admin_pb2, admin_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import grpc

    from broker.domain.clock import Clock
    from broker.services.operating.dead_letters import DeadLetterService
    from broker.services.operating.groups import GroupService

    _Context = grpc.aio.ServicerContext[object, object]


class GroupAdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """Administration of consumer groups."""

    _dead_letters: DeadLetterService
    _groups: GroupService
    _clock: Clock

    async def CreateGroup(
        self, request: admin_pb2.CreateGroupRequest, context: _Context
    ) -> admin_pb2.CreateGroupResponse:
        """Creates a consumer group."""
        check_only(request.cell)
        group = await self._groups.create(request.group.name, groups.settings_in(request.group))
        return admin_pb2.CreateGroupResponse(group=groups.group(group))

    async def ListGroups(self, request: admin_pb2.ListGroupsRequest, context: _Context) -> admin_pb2.ListGroupsResponse:
        """Lists consumer groups."""
        may = CALLER.get().judge(Action.LIST, Kind.GROUP)
        found, following = await self._groups.groups(request.page_token, request.page_size, may)
        return admin_pb2.ListGroupsResponse(
            groups=[groups.group(group, its_filters) for group, its_filters in found], next_page_token=following
        )

    async def ListGroupLag(
        self, request: admin_pb2.ListGroupLagRequest, context: _Context
    ) -> admin_pb2.ListGroupLagResponse:
        """Lists the lag of all consumer groups."""
        may = CALLER.get().judge(Action.LIST, Kind.GROUP)
        found, following = await self._groups.lags(request.topic, request.page_token, request.page_size, may)
        now = self._clock.now()
        return admin_pb2.ListGroupLagResponse(
            groups=[groups.group_lag(lag, now) for lag in found], next_page_token=following
        )

    async def DescribeGroup(
        self, request: admin_pb2.DescribeGroupRequest, context: _Context
    ) -> admin_pb2.DescribeGroupResponse:
        """Returns a consumer group's settings and progress."""
        group, wanted, states = await self._groups.progress(request.group)
        now = self._clock.now()
        return admin_pb2.DescribeGroupResponse(
            group=groups.group(group, wanted), progress=[groups.group_progress(state, now) for state in states]
        )

    async def UpdateGroup(
        self, request: admin_pb2.UpdateGroupRequest, context: _Context
    ) -> admin_pb2.UpdateGroupResponse:
        """Changes a consumer group."""
        changes: dict[str, Any] = {}
        if request.HasField("max_attempts"):
            changes["max_attempts"] = request.max_attempts
        if request.HasField("retry_delays"):
            changes["retry_delays"] = groups.delays_in(request.retry_delays.delays, "retry_delays.delays")
        policy = groups.policy_in(request.when_exhausted, "when_exhausted")
        if policy is not None:
            changes["when_exhausted"] = int(policy)
        if request.HasField("keep_unread"):
            changes["keep_unread"] = int(request.keep_unread)
        if request.HasField("fifo"):
            changes["fifo"] = int(request.fifo)
        group, wanted = await self._groups.update(request.group, changes)
        return admin_pb2.UpdateGroupResponse(group=groups.group(group, wanted))

    async def PauseGroup(self, request: admin_pb2.PauseGroupRequest, context: _Context) -> admin_pb2.PauseGroupResponse:
        """Pauses or resumes delivery to a group."""
        group, wanted = await self._groups.pause(request.group, paused=not request.resume, reason=request.reason)
        return admin_pb2.PauseGroupResponse(group=groups.group(group, wanted))

    async def SeekGroup(self, request: admin_pb2.SeekGroupRequest, context: _Context) -> admin_pb2.SeekGroupResponse:
        """Moves a group to another position."""
        to, offset = filters.place_in(request.to, "to")
        queue_no = request.queue if request.HasField("queue") else None
        states = await self._groups.seek(request.group, request.topic, queue_no, to=to, offset=offset)
        now = self._clock.now()
        return admin_pb2.SeekGroupResponse(progress=[groups.group_progress(state, now) for state in states])

    async def SetFilter(self, request: admin_pb2.SetFilterRequest, context: _Context) -> admin_pb2.SetFilterResponse:
        """Sets a group's filter of a topic."""
        wanted = filters.filter_in(request.filter.filter, "filter.filter")
        group, known = await self._groups.set_filter(request.group, request.filter.topic, wanted)
        return admin_pb2.SetFilterResponse(group=groups.group(group, known))

    async def ListDeadLetters(
        self, request: admin_pb2.ListDeadLettersRequest, context: _Context
    ) -> admin_pb2.ListDeadLettersResponse:
        """Lists a group's dead letters."""
        wanted = filters.filter_in(request.filter, "filter")
        found, following = await self._dead_letters.page(request.group, wanted, request.page_token, request.page_size)
        response = admin_pb2.ListDeadLettersResponse(next_page_token=following)
        caller = CALLER.get()
        for entry in found:
            if entry.origin is not None and not caller.may(Action.GET, Kind.TOPIC, entry.origin.topic):
                continue
            groups.fill_dead_letter(response.dead_letters.add(), entry)
        return response

    async def RedriveDeadLetters(
        self, request: admin_pb2.RedriveDeadLettersRequest, context: _Context
    ) -> AsyncIterator[admin_pb2.RedriveDeadLettersResponse]:
        """Delivers dead letters to their group again."""
        wanted = filters.filter_in(request.filter, "filter")
        may = CALLER.get().judge(Action.PUB, Kind.TOPIC)
        steps = self._dead_letters.redrive(
            request.group, wanted, request.offsets, republish=request.republish_expired, may=may
        )
        async for so_far, last in steps:
            yield admin_pb2.RedriveDeadLettersResponse(
                examined=so_far.examined,
                redriven=so_far.redriven,
                republished=so_far.republished,
                left=so_far.left,
                total=so_far.total,
                done=last,
            )

    async def PurgeDeadLetters(
        self, request: admin_pb2.PurgeDeadLettersRequest, context: _Context
    ) -> AsyncIterator[admin_pb2.PurgeDeadLettersResponse]:
        """Deletes a group's oldest dead letters."""
        steps = self._dead_letters.purge(
            request.group,
            end=request.before_offset if request.HasField("before_offset") else None,
            before=times.micros_of_time(request.before, "before") if request.HasField("before") else None,
            dry_run=request.dry_run,
        )
        async for step in steps:
            yield admin_pb2.PurgeDeadLettersResponse(deleted=step.deleted, end_offset=step.end, done=step.done)

    async def DeleteGroup(
        self, request: admin_pb2.DeleteGroupRequest, context: _Context
    ) -> admin_pb2.DeleteGroupResponse:
        """Deletes a consumer group."""
        await self._groups.delete(request.group)
        return admin_pb2.DeleteGroupResponse()
