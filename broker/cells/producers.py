"""Calls of producers: sends, transactions, and epochs of sinks."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from broker.cells import left_behind, placing
from broker.cells.items import NOT_FOUND, UNAVAILABLE, scattered, sought
from broker.domain.access import Action, Kind
from broker.domain.cell import HOME_NUMBER, LATELY, apart, given_by, listed, name_of_topic
from broker.domain.lease import Receipt
from broker.domain.limits import MAX_SINK_NAME, Limits, check_count, check_name
from broker.errors import BrokerError, InvalidArgument, Moved, Refused, StaleReceipt, StorageUnavailable
from broker.services.rights import CALLER
from broker.wire.status import item_error
from halfmq.v1 import producer_pb2, producer_pb2_grpc, sink_pb2, sink_pb2_grpc, transaction_pb2, transaction_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    import grpc

    from broker.cells.cell import Cell
    from broker.cells.routing import Router
    from broker.domain.cell import Name

    _Context = grpc.aio.ServicerContext[object, object]

MOST_REMEMBERED = 200_000
MOST_ITEMS = Limits().max_items


def _topics(messages: Iterable[Any]) -> set[Name]:
    """The topics of messages, without those that the caller may not send to: the cell refuses these.

    Raises:
        InvalidArgument: they are more than one request may have.
    """
    texts: set[str] = set()
    for message in messages:
        texts.add(message.topic)
        if len(texts) > MOST_ITEMS:
            raise InvalidArgument(f"More than {MOST_ITEMS} topics in one request.", field="topic")
    may = CALLER.get().judge(Action.PUB, Kind.TOPIC)
    # Where others are is nothing for them.
    return {name_of_topic(text) for text in texts if may is None or may(text)}


def _send_refused(_: Any, error: BrokerError) -> producer_pb2.SendResult:
    return producer_pb2.SendResult(error=item_error(error))


def _recall_refused(message_id: str, error: BrokerError) -> producer_pb2.RecallResult:
    return producer_pb2.RecallResult(message_id=message_id, error=item_error(error))


def _prepare_refused(item: Any, error: BrokerError) -> transaction_pb2.TransactionResult:
    return transaction_pb2.TransactionResult(transaction_id=item.transaction_id[:80], error=item_error(error))


def _verdict_refused(transaction_id: str, error: BrokerError) -> transaction_pb2.TransactionResult:
    return transaction_pb2.TransactionResult(transaction_id=transaction_id[:80], error=item_error(error))


def _is_elsewhere(error: Any) -> bool:
    return bool(error.code == NOT_FOUND)


async def find_transaction(
    router: Router, request: transaction_pb2.GetTransactionRequest, context: _Context, first: Cell | None = None
) -> transaction_pb2.GetTransactionResponse:
    """What is known of a transaction, wherever it is, with the places that any cell knows; `first` is where to begin.

    Raises:
        NotFound: of all cells.
        StorageUnavailable: one that could not be asked may have it.
    """
    found = await router.first_found(
        lambda each: each.transactions.GetTransaction,
        request,
        context,
        first=first,
        is_whole=lambda answer: not left_behind.lacks_places(answer.transaction.op.released),
        joined=_with_places,
    )
    return found  # type: ignore[no-any-return]


def _with_places(
    found: transaction_pb2.GetTransactionResponse, other: transaction_pb2.GetTransactionResponse
) -> transaction_pb2.GetTransactionResponse:
    left_behind.fill_places(found.transaction.op.released, other.transaction.op.released)
    return found


async def _cells_of(router: Router, wanted: Sequence[set[Name]]) -> list[Cell | BrokerError]:
    """The cells of items, by the topics of each; those that are in several are looked up anew, all together."""
    names = set().union(*wanted)
    placed = await router.placing.find(names)
    unknown: StorageUnavailable | None = None
    if any(len({placed[name].cell for name in each}) > 1 for each in wanted):
        try:
            placed = await router.placing.find(names, again=True)
        except StorageUnavailable as error:
            unknown = error.as_outcome()
    found: list[Cell | BrokerError] = []
    for each in wanted:
        cells = {placed[name].cell for name in each} or {HOME_NUMBER}
        try:
            found.append(router.cells.numbered(cells.pop()) if len(cells) == 1 else unknown or apart(sorted(each)))
        except StorageUnavailable as error:
            found.append(error.as_outcome())
    return found


async def _explain(
    router: Router,
    results: Iterable[Any],
    cells: Iterable[Cell | BrokerError],
    wanted: Iterable[set[Name]],
    began: int,
) -> None:
    """Puts in what NotFound of an item means: its topics may be moving, or have moved since it was asked for."""
    results, cells, wanted = list(results), list(cells), list(wanted)
    at_home = [
        (result, names)
        for result, cell, names in zip(results, cells, wanted, strict=True)
        if cell is router.cells.home and (result.error.reason == "MOVED" or result.error.code == NOT_FOUND)
    ]
    if at_home:
        await _end_displacing(router, at_home)
    missing = [
        (result, cell, names)
        for result, cell, names in zip(results, cells, wanted, strict=True)
        if result.error.code == NOT_FOUND and not isinstance(cell, BrokerError)
    ]
    if not missing:
        return
    try:
        not_found = {name for _, _, names in missing for name in names}
        await router.placing.find(not_found, again=True)
        lately = await router.moved_names(not_found, began)
    except StorageUnavailable as error:
        # What is stored is stored, whatever is unknown of the others.
        for result, _, _ in missing:
            result.error.CopyFrom(item_error(error))
        return
    for result, cell, names in missing:
        if (moved := await router.moved(names, cell, lately)) is not None:
            result.error.CopyFrom(item_error(moved))


async def _end_displacing(router: Router, refused: Sequence[tuple[Any, set[Name]]]) -> None:
    """Ends what other brokers did not, of items that home refused or whose topics it does not have."""
    wanted = {name for _, names in refused for name in names}
    try:
        await router.names.end_displacing(wanted)
    except StorageUnavailable as error:
        # What is not there may be in a cell that cannot be asked.
        with suppress(StorageUnavailable):
            unknown = set(await router.placing.store.displaced(sorted(wanted)))
            for result, names in refused:
                if result.error.code == NOT_FOUND and names & unknown:
                    result.error.CopyFrom(item_error(error))


class ProducerRouter(producer_pb2_grpc.ProducerServiceServicer):
    """ProducerService over cells."""

    def __init__(self, router: Router) -> None:
        """Takes the router."""
        self._router = router

    async def Send(self, request: producer_pb2.SendRequest, context: _Context) -> producer_pb2.SendResponse:
        """Sends each message to the cell of its topic; messages in order to one cell only."""
        check_count(len(request.messages), MOST_ITEMS, "messages")
        began = self._router.now()
        names = _topics(request.messages)
        each_of = [names & {name_of_topic(message.topic)} for message in request.messages]
        there = {each.cell for each in (await self._router.placing.find(names)).values()}
        if request.in_order or len(there) <= 1:
            if request.in_order:
                cell = await self._router.cell_of(names)
            else:
                # Not looked up again: in a moment they may be in two cells, and each message goes to its own.
                cell = self._router.cells.numbered(there.pop() if there else HOME_NUMBER)
            answer = await self._router.call(cell, names, lambda each: each.producers.Send, request, context)
            await _explain(self._router, answer.results, [cell] * len(each_of), each_of, began)
            return answer  # type: ignore[no-any-return]
        cells = await _cells_of(self._router, each_of)
        results = await scattered(
            self._router,
            request,
            "messages",
            cells,
            lambda each, part: each.producers.Send(part, context),
            _send_refused,
        )
        await _explain(self._router, results, cells, each_of, began)
        return producer_pb2.SendResponse(results=results)

    async def SendAndAck(
        self, request: producer_pb2.SendAndAckRequest, context: _Context
    ) -> producer_pb2.SendAndAckResponse:
        """Sends to the cell of the topics, where the receipts must be, too."""
        check_count(len(request.messages), MOST_ITEMS, "messages")
        began = self._router.now()
        names = _topics(request.messages)
        cell = await self._router.cell_of(names)
        try:
            answer = await self._router.call(cell, names, lambda each: each.producers.SendAndAck, request, context)
        except StaleReceipt as error:
            if error.reason == "RECEIPT_GONE":
                await self._check_gone(cell, names, request.receipt_handles, began)
            raise
        return answer  # type: ignore[no-any-return]

    async def _check_gone(self, cell: Cell, names: set[Name], handles: Iterable[str], began: int) -> None:
        """Refuses receipts that a cell, asked since a time, does not have because their leases are in another one.

        Raises:
            Refused: they are.
            StorageUnavailable: they may be, or be on their way.
        """
        router = self._router
        receipts = [Receipt.parse(handle) for handle in handles]
        # Of others' groups it knows no receipts.
        may = CALLER.get().judge(Action.SUB, Kind.GROUP)
        unknown: BrokerError | None = None
        for other in await self._others_with(receipts, cell):
            try:
                with router.cells.calling(other):
                    found = other.has_receipts is not None and await other.has_receipts(receipts, may)
            except StorageUnavailable as error:
                # One that has them tells more.
                unknown = unknown or error.as_outcome()
                continue
            if found:
                raise Refused(
                    f"The receipts are of messages in the cell {other.name!r}, and {listed(sorted(names))} in"
                    f" {cell.name!r}; these databases have no transaction in common. Nothing was sent or acknowledged:"
                    " move the topics together with `halfmq cells move`, or send first and acknowledge then, by two"
                    " calls.",
                    reason="TOPICS_APART",
                    field="topic",
                )
        if unknown is not None:
            raise unknown
        # Each cell tells itself whether they may have left it, for a while.
        if router.now() - began > LATELY // 2 and await router.moved_lately(began):
            raise Moved("lease of this receipt")

    async def _others_with(self, receipts: Iterable[Receipt], cell: Cell) -> list[Cell]:
        """The cells beside one in which receipts may be."""
        others = self._router.cells.in_turn(cell)[1:]
        try:
            if await self._router.placing.store.moved_lately(0):
                return others
        except StorageUnavailable:
            return others
        # Nothing has ever moved. What has a number from before there were cells is at home, whatever that tells.
        givers = {HOME_NUMBER, *(given_by(receipt.lease_id) for receipt in receipts)}
        return [other for other in others if other.number in givers]

    async def Recall(self, request: producer_pb2.RecallRequest, context: _Context) -> producer_pb2.RecallResponse:
        """Recalls messages, wherever they are."""
        check_count(len(request.message_ids), MOST_ITEMS, "message_ids")
        results = await sought(
            self._router,
            request,
            "message_ids",
            lambda each, part: each.producers.Recall(part, context),
            _recall_refused,
            {},
            _is_elsewhere,
        )
        return producer_pb2.RecallResponse(results=results)


class TransactionRouter(transaction_pb2_grpc.TransactionServiceServicer):
    """TransactionService over cells: a transaction is in one cell."""

    def __init__(self, router: Router) -> None:
        """Takes the router."""
        self._router = router
        # Those that are not at home, by their ids; hints.
        self._cells: dict[str, Cell] = {}

    async def Prepare(
        self, request: transaction_pb2.PrepareRequest, context: _Context
    ) -> transaction_pb2.PrepareResponse:
        """Prepares each transaction in the cell of its topics."""
        check_count(len(request.transactions), MOST_ITEMS, "transactions")
        router = self._router
        began = router.now()
        names = _topics(message for item in request.transactions for message in item.messages)
        each_of = [names & {name_of_topic(message.topic) for message in item.messages} for item in request.transactions]
        cells = await _cells_of(router, each_of)
        first: dict[str, Cell] = {}
        for index, (item, cell) in enumerate(zip(request.transactions, cells, strict=True)):
            # Without an id it is another transaction.
            own = item.transaction_id
            if own and not isinstance(cell, BrokerError) and first.setdefault(own, cell) is not cell:
                # One verdict would decide one of them.
                cells[index] = apart([f"transaction {own[:80]}", *sorted(each_of[index])])
        results = await scattered(
            router,
            request,
            "transactions",
            cells,
            lambda each, part: each.transactions.Prepare(part, context),
            _prepare_refused,
        )
        await _explain(router, results, cells, each_of, began)
        for cell, result in zip(cells, results, strict=True):
            if not result.HasField("error") and not isinstance(cell, BrokerError) and cell is not router.cells.home:
                self._remember(result.transaction_id, cell)
        return transaction_pb2.PrepareResponse(results=results)

    def _remember(self, transaction_id: str, cell: Cell) -> None:
        if len(self._cells) >= MOST_REMEMBERED:
            del self._cells[next(iter(self._cells))]
        self._cells[transaction_id] = cell

    async def _decided(self, request: Any, call: Any) -> list[Any]:
        check_count(len(request.transaction_ids), MOST_ITEMS, "transaction_ids")
        hints = {index: self._cells[own] for index, own in enumerate(request.transaction_ids) if own in self._cells}
        results = await sought(
            self._router,
            request,
            "transaction_ids",
            call,
            _verdict_refused,
            hints,
            _is_elsewhere,
            lambda result: result.released,
        )
        for own, result in zip(request.transaction_ids, results, strict=True):
            # It is sent again while its cell is away.
            if result.error.code != UNAVAILABLE:
                self._cells.pop(own, None)
        return results

    async def Commit(self, request: transaction_pb2.CommitRequest, context: _Context) -> transaction_pb2.CommitResponse:
        """Commits transactions, wherever they are."""
        results = await self._decided(request, lambda each, part: each.transactions.Commit(part, context))
        return transaction_pb2.CommitResponse(results=results)

    async def Rollback(
        self, request: transaction_pb2.RollbackRequest, context: _Context
    ) -> transaction_pb2.RollbackResponse:
        """Rolls transactions back, wherever they are."""
        results = await self._decided(request, lambda each, part: each.transactions.Rollback(part, context))
        return transaction_pb2.RollbackResponse(results=results)

    async def GetTransaction(
        self, request: transaction_pb2.GetTransactionRequest, context: _Context
    ) -> transaction_pb2.GetTransactionResponse:
        """Returns what is known of a transaction, wherever it is."""
        return await find_transaction(self._router, request, context, self._cells.get(request.transaction_id))

    async def CheckTransactions(
        self, request_iterator: AsyncIterator[transaction_pb2.CheckTransactionsRequest], context: Any
    ) -> AsyncIterator[transaction_pb2.CheckTransactionsResponse]:
        """Sends checks of all cells: producers are registered at home."""
        responses = self._router.cells.home.servicers.transactions.CheckTransactions(request_iterator, context)
        try:
            async for response in responses:
                yield response
        finally:
            await responses.aclose()


class SinkRouter(sink_pb2_grpc.SinkServiceServicer):
    """SinkService over cells: a sink is where the topics are that it first writes to."""

    def __init__(self, router: Router) -> None:
        """Takes the router."""
        self._router = router

    async def _write(self, name: str, topics: set[Name], method: Any, request: Any, context: _Context) -> Any:
        check_name(name, field="epoch.sink", longest=MAX_SINK_NAME)
        own = placing.sink(name)
        async with self._router.cell_of_reader(own, topics) as (cell, names):
            return await self._router.call(cell, names, method, request, context)

    async def PrepareEpoch(
        self, request: sink_pb2.PrepareEpochRequest, context: _Context
    ) -> sink_pb2.PrepareEpochResponse:
        """Stores half messages of an attempt."""
        topics = _topics(request.messages)
        method = lambda each: each.sinks.PrepareEpoch  # noqa: E731
        return await self._write(request.epoch.sink, topics, method, request, context)  # type: ignore[no-any-return]

    async def CommitEpoch(
        self, request: sink_pb2.CommitEpochRequest, context: _Context
    ) -> sink_pb2.CommitEpochResponse:
        """Releases an epoch."""
        topics = _topics(message for each in request.transactions for message in each.messages)
        method = lambda each: each.sinks.CommitEpoch  # noqa: E731
        return await self._write(request.epoch.sink, topics, method, request, context)  # type: ignore[no-any-return]

    async def AbortEpoch(self, request: sink_pb2.AbortEpochRequest, context: _Context) -> sink_pb2.AbortEpochResponse:
        """Drops an epoch."""
        names = [placing.sink(request.epoch.sink)]
        answer = await self._router.call_there(names, lambda each: each.sinks.AbortEpoch, request, context)
        return answer  # type: ignore[no-any-return]

    async def GetSink(self, request: sink_pb2.GetSinkRequest, context: _Context) -> sink_pb2.GetSinkResponse:
        """Returns the state of a sink."""
        names = [placing.sink(request.sink)]
        answer = await self._router.call_there(names, lambda each: each.sinks.GetSink, request, context)
        return answer  # type: ignore[no-any-return]

    async def DeleteSink(self, request: sink_pb2.DeleteSinkRequest, context: _Context) -> sink_pb2.DeleteSinkResponse:
        """Deletes a sink, and its place in the list."""
        own = placing.sink(request.sink)
        answer = await self._router.delete(own, lambda each: each.sinks.DeleteSink, request, context)
        return answer  # type: ignore[no-any-return]
