"""Calls of operators: for one topic or group in its cell, lists over all cells, and what there is once at home."""

from __future__ import annotations

from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from broker.cells import left_behind, placing
from broker.cells.producers import find_transaction
from broker.domain.cell import HOME, HOME_NUMBER, LEAST_LOADED, Placed, name_of_topic
from broker.errors import BrokerError, InvalidArgument, NotFound, StorageUnavailable
from broker.services.rights import CALLER
from halfmq.v1 import admin_pb2, admin_pb2_grpc, query_pb2, query_pb2_grpc, transaction_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    import grpc
    from google.protobuf.timestamp_pb2 import Timestamp

    from broker.cells.cell import Cell
    from broker.cells.routing import Router
    from broker.domain.cell import Name

    _Context = grpc.aio.ServicerContext[object, object]


def _at_home(method: str) -> Any:
    async def call(self: Any, request: Any, context: _Context) -> Any:
        with self._router.cells.calling(self._router.cells.home) as servicers:
            return await getattr(servicers.operators, method)(request, context)

    return call


def _of(method: str, kind: Callable[[str], Name], field: str) -> Any:
    async def call(self: Any, request: Any, context: _Context) -> Any:
        names = [kind(getattr(request, field))]
        return await self._router.call_there(names, lambda each: getattr(each.operators, method), request, context)

    return call


def _stream_of_group(method: str) -> Any:
    async def call(self: Any, request: Any, context: _Context) -> AsyncIterator[Any]:
        names = [placing.group(request.group)]
        answers = self._router.stream_there(names, lambda each: getattr(each.operators, method), request, context)
        async with aclosing(answers):
            async for response in answers:
                yield response

    return call


class AdminRouter(admin_pb2_grpc.AdminServiceServicer):
    """AdminService over cells."""

    DescribeTopic = _of("DescribeTopic", name_of_topic, "topic")
    UpdateTopic = _of("UpdateTopic", name_of_topic, "topic")
    DescribeGroup = _of("DescribeGroup", placing.group, "group")
    UpdateGroup = _of("UpdateGroup", placing.group, "group")
    PauseGroup = _of("PauseGroup", placing.group, "group")
    ListDeadLetters = _of("ListDeadLetters", placing.group, "group")
    RedriveDeadLetters = _stream_of_group("RedriveDeadLetters")
    PurgeDeadLetters = _stream_of_group("PurgeDeadLetters")
    ListBrokers = _at_home("ListBrokers")
    ListClients = _at_home("ListClients")
    GrantAccess = _at_home("GrantAccess")
    RevokeAccess = _at_home("RevokeAccess")
    ListAccessRules = _at_home("ListAccessRules")
    SetQuota = _at_home("SetQuota")
    ListQuotas = _at_home("ListQuotas")
    ListAuditRecords = _at_home("ListAuditRecords")
    GetOverview = _at_home("GetOverview")

    def __init__(self, router: Router) -> None:
        """Takes the router."""
        self._router = router

    async def CreateTopic(
        self, request: admin_pb2.CreateTopicRequest, context: _Context
    ) -> admin_pb2.CreateTopicResponse:
        """Creates a topic in the cell that the request names; home otherwise."""
        name = name_of_topic(request.topic.name)
        if request.cell and name.kind is not Placed.TOPIC:
            raise InvalidArgument("A topic of dead letters is where its group is.", field="cell")
        return await self._create(request, name, lambda each: each.operators.CreateTopic, context)  # type: ignore[no-any-return]

    async def CreateGroup(
        self, request: admin_pb2.CreateGroupRequest, context: _Context
    ) -> admin_pb2.CreateGroupResponse:
        """Creates a consumer group in the cell that the request names; home otherwise."""
        name = placing.group(request.group.name)
        return await self._create(request, name, lambda each: each.operators.CreateGroup, context)  # type: ignore[no-any-return]

    async def _create(self, request: Any, name: Name, method: Callable[[Any], Any], context: _Context) -> Any:
        router = self._router
        wanted = request.cell
        if wanted not in {"", HOME} and CALLER.get().tenant:
            # Its quotas count what is at home.
            raise InvalidArgument("Whoever belongs to a tenant does not choose a cell: operators do.", field="cell")
        cell = await router.cell_of([name])
        if wanted == LEAST_LOADED:
            wanted = (await router.cells.least_loaded()).name if cell is router.cells.home else cell.name
        chosen = router.cells.named(wanted, "cell") if wanted else cell
        # What cannot be created is refused at home.
        if name.allowed:
            if chosen is not router.cells.home and cell in {router.cells.home, chosen}:
                # Placed before it is there: where it was may be remembered, and it be at home by now.
                with router.cells.calling(chosen):
                    cell = router.cells.numbered((await router.placing.place(name, chosen.number)).cell)
            if wanted and cell is not chosen:
                raise InvalidArgument(
                    f"The {name} is placed in the cell {cell.name!r}; move it with `halfmq cells move`.", field="cell"
                )
        own = type(request)()
        own.CopyFrom(request)
        own.cell = ""
        try:
            answer = await router.call(cell, [name], method, own, context)
        except BrokerError as error:
            if cell is not router.cells.home and not isinstance(error, StorageUnavailable):
                await router.names.displace(name, cell)
            raise
        if cell is not router.cells.home:
            # Somebody may just have deleted another one, and its place.
            await router.names.place_again(name, cell)
        return answer

    async def DeleteTopic(
        self, request: admin_pb2.DeleteTopicRequest, context: _Context
    ) -> admin_pb2.DeleteTopicResponse:
        """Deletes a topic, and its place in the list."""
        name = name_of_topic(request.topic)
        answer = await self._router.delete(name, lambda each: each.operators.DeleteTopic, request, context)
        return answer  # type: ignore[no-any-return]

    async def DeleteGroup(
        self, request: admin_pb2.DeleteGroupRequest, context: _Context
    ) -> admin_pb2.DeleteGroupResponse:
        """Deletes a consumer group, and its place in the list."""
        name = placing.group(request.group)
        answer = await self._router.delete(name, lambda each: each.operators.DeleteGroup, request, context)
        return answer  # type: ignore[no-any-return]

    async def SeekGroup(self, request: admin_pb2.SeekGroupRequest, context: _Context) -> admin_pb2.SeekGroupResponse:
        """Moves a group to another position, in its cell."""
        names = [placing.group(request.group), *([name_of_topic(request.topic)] if request.topic else [])]
        answer = await self._router.call_there(names, lambda each: each.operators.SeekGroup, request, context)
        return answer  # type: ignore[no-any-return]

    async def SetFilter(self, request: admin_pb2.SetFilterRequest, context: _Context) -> admin_pb2.SetFilterResponse:
        """Sets a group's filter of a topic, in their cell."""
        names = [placing.group(request.group), name_of_topic(request.filter.topic)]
        answer = await self._router.call_there(names, lambda each: each.operators.SetFilter, request, context)
        return answer  # type: ignore[no-any-return]

    async def ListTopics(self, request: admin_pb2.ListTopicsRequest, context: _Context) -> admin_pb2.ListTopicsResponse:
        """Lists topics, those of one cell after those of the other."""
        return await self._page(request, lambda each: each.operators.ListTopics, context)  # type: ignore[no-any-return]

    async def ListGroups(self, request: admin_pb2.ListGroupsRequest, context: _Context) -> admin_pb2.ListGroupsResponse:
        """Lists consumer groups, those of one cell after those of the other."""
        return await self._page(request, lambda each: each.operators.ListGroups, context)  # type: ignore[no-any-return]

    async def ListGroupLag(
        self, request: admin_pb2.ListGroupLagRequest, context: _Context
    ) -> admin_pb2.ListGroupLagResponse:
        """Lists the lag of groups, those of one cell after those of the other."""
        method = lambda each: each.operators.ListGroupLag  # noqa: E731
        if request.topic:
            names = [name_of_topic(request.topic)]
            return await self._router.call_there(names, method, request, context)  # type: ignore[no-any-return]
        return await self._page(request, method, context)  # type: ignore[no-any-return]

    async def ListTransactions(
        self, request: admin_pb2.ListTransactionsRequest, context: _Context
    ) -> admin_pb2.ListTransactionsResponse:
        """Lists transactions, those of one cell after those of the other."""
        method = lambda each: each.operators.ListTransactions  # noqa: E731
        if request.topic:
            names = [name_of_topic(request.topic)]
            return await self._router.call_there(names, method, request, context)  # type: ignore[no-any-return]
        return await self._page(request, method, context)  # type: ignore[no-any-return]

    async def _page(
        self, request: Any, method: Callable[[Any], Callable[..., Awaitable[Any]]], context: _Context
    ) -> Any:
        """A page of one cell. Its token names the cell, as in `b:token`; those of home have no name."""
        router = self._router
        name, separator, token = request.page_token.partition(":")
        cell = router.cells.named(name, "page_token") if separator else router.cells.home
        own = type(request)()
        own.CopyFrom(request)
        own.page_token = token if separator else request.page_token
        with router.cells.calling(cell) as servicers:
            answer = await method(servicers)(own, context)
        if answer.next_page_token:
            answer.next_page_token = _token(cell, answer.next_page_token)
        else:
            place = router.cells.each.index(cell) + 1
            if place < len(router.cells.each):
                answer.next_page_token = f"{router.cells.each[place].name}:"
        return answer

    async def ResolveTransaction(
        self, request: admin_pb2.ResolveTransactionRequest, context: _Context
    ) -> admin_pb2.ResolveTransactionResponse:
        """Resolves a transaction, wherever it is; of one that was decided before, other cells may know the places."""
        found = await self._router.first_found(lambda each: each.operators.ResolveTransaction, request, context)
        released = found.result.released
        if left_behind.lacks_places(released):
            # It is not resolved in another cell, too. That it was is told, whatever is known of its places.
            with suppress(BrokerError):
                wanted = transaction_pb2.GetTransactionRequest(transaction_id=request.transaction_id)
                known = await find_transaction(self._router, wanted, context)
                left_behind.fill_places(released, known.transaction.op.released)
        return found  # type: ignore[no-any-return]

    async def ResolveTransactions(
        self, request: admin_pb2.ResolveTransactionsRequest, context: _Context
    ) -> AsyncIterator[admin_pb2.ResolveTransactionsResponse]:
        """Resolves transactions, in one cell after the other."""
        cells: Sequence[Cell] = self._router.cells.each
        names = [name_of_topic(request.topic)] if request.topic else []
        if names:
            cells = [await self._router.cell_of(names)]
        matched = resolved = left = 0
        as_of: Timestamp | None = None
        for cell in cells:
            last: Any = None
            answers = self._router.stream(
                cell, names, lambda each: each.operators.ResolveTransactions, request, context
            )
            try:
                async for last in answers:
                    done = last.done and cell is cells[-1]
                    # What is prepared while cells are counted is in none of the counts: not by the time of the last.
                    if last.HasField("as_of") and (as_of is None or last.as_of.ToNanoseconds() < as_of.ToNanoseconds()):
                        as_of = last.as_of
                    so_far = admin_pb2.ResolveTransactionsResponse()
                    so_far.CopyFrom(last)
                    so_far.matched, so_far.resolved = matched + last.matched, resolved + last.resolved
                    so_far.left, so_far.done = left + last.left, done
                    if as_of is not None:
                        so_far.as_of.CopyFrom(as_of)
                    yield so_far
            except NotFound:
                # Neither the group nor the topic is in this cell.
                if cell is cells[-1] and not matched:
                    raise
            finally:
                await answers.aclose()
            if last is not None:
                matched, resolved, left = matched + last.matched, resolved + last.resolved, left + last.left


def _token(cell: Cell, token: str) -> str:
    return token if cell.number == HOME_NUMBER else f"{cell.name}:{token}"


class QueryRouter(query_pb2_grpc.QueryServiceServicer):
    """QueryService over cells."""

    def __init__(self, router: Router) -> None:
        """Takes the router."""
        self._router = router

    async def GetMessage(self, request: query_pb2.GetMessageRequest, context: _Context) -> query_pb2.GetMessageResponse:
        """Finds a message, wherever it is."""
        found = await self._router.first_found(
            lambda each: each.queries.GetMessage,
            request,
            context,
            is_whole=left_behind.is_found,
            joined=left_behind.better,
        )
        return found  # type: ignore[no-any-return]

    async def GetTimeline(
        self, request: query_pb2.GetTimelineRequest, context: _Context
    ) -> query_pb2.GetTimelineResponse:
        """Returns the events of a message, of all cells that it was in."""
        answers = await self._router.all_found(
            lambda each: each.queries.GetTimeline, request, context, is_whole=left_behind.has_its_place
        )
        return left_behind.merged(answers)

    async def FindMessages(
        self, request: query_pb2.FindMessagesRequest, context: _Context
    ) -> query_pb2.FindMessagesResponse:
        """Finds messages of a topic, in its cell."""
        names = [name_of_topic(request.topic)]
        answer = await self._router.call_there(names, lambda each: each.queries.FindMessages, request, context)
        return answer  # type: ignore[no-any-return]
