"""Producers' calls: sending, ending transactions, recalling."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from broker.domain.access import Action, Kind
from broker.domain.ids import format_id, parse_id
from broker.domain.message import ROCKETMQ_ID
from broker.domain.transaction import CheckVerdict, TransactionState, VerdictSource
from broker.errors import AlreadyExists, BrokerError, Denied, InvalidArgument, NotFound, Refused, VerdictConflict
from broker.ports.checks import CheckAnswer
from broker.ports.transactions import VerdictWork
from broker.rocketmq.access import may_decide, may_send
from broker.rocketmq.codes import OK, BadRequest, Unsupported, status, status_of
from broker.rocketmq.ids import own_id, rocketmq_id
from broker.rocketmq.messages import LONGEST_TRACE, Type, message_in, recovery_delay
from broker.rocketmq.names import name_of, producer_group_of
from broker.rocketmq.protocol import Code, definition_pb2, service_pb2
from broker.services.producing.sending import OrdinaryMessage, Sent
from broker.services.producing.transactions import PlacedOutcome
from broker.services.producing.validation import HalfTransaction
from broker.services.rights import CALLER
from broker.wire.budget import Share
from broker.wire.throttled_log import ThrottledLog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.message import Message
    from broker.rocketmq.calls import Caller
    from broker.rocketmq.clients import Clients
    from broker.services.producing.checks import CheckAnswers
    from broker.services.producing.sending import SendService
    from broker.services.producing.transactions import TransactionService
    from broker.wire.budget import Budget

_Resolution, _Source = definition_pb2.TransactionResolution, definition_pb2.TransactionSource
_VERDICTS = {_Resolution.COMMIT: CheckVerdict.COMMIT, _Resolution.ROLLBACK: CheckVerdict.ROLLBACK}

logger = logging.getLogger("halfmq.rocketmq")
_of_clients = ThrottledLog(logger)


class Producing:
    """The calls of producers."""

    def __init__(
        self,
        transactions: TransactionService,
        sending: SendService,
        answers: CheckAnswers,
        clients: Clients,
        budget: Budget,
    ) -> None:
        """Takes the services, the clients, and the budget of requests."""
        self._transactions = transactions
        self._sending = sending
        self._answers = answers
        self._clients = clients
        self._budget = budget

    async def send(self, request: Any, caller: Caller) -> Any:
        """Stores messages, each with its own result: ordinary ones, delayed ones, and half messages."""
        with Share(self._budget) as share:
            return await self._store_all(request, caller, share)

    async def _store_all(self, request: Any, caller: Caller, share: Share) -> Any:
        if not request.messages:
            raise BadRequest("There is no message to send.", Code.MESSAGE_CORRUPTED, "messages")
        self._transactions.limits.check_items(len(request.messages), "messages")
        halves: dict[int, tuple[bytes, Message, int]] = {}
        ordinary: dict[int, OrdinaryMessage | BrokerError] = {}
        for index, given in enumerate(request.messages):
            try:
                own, message = message_in(given, caller.namespace, self._transactions.limits.max_body, share)
                _check_type(given.system_properties)
                if not may_send(message.topic):
                    raise Denied
                is_half = given.system_properties.message_type == Type.TRANSACTION
                if is_half and not may_decide(message.topic):
                    raise Denied
                if is_half:
                    halves[index] = own, message, recovery_delay(given)
                else:
                    ordinary[index] = OrdinaryMessage(own, message)
            except BrokerError as error:
                ordinary[index] = error.as_outcome()
        outcomes: dict[int, Sent | PlacedOutcome | BrokerError] = {}
        if ordinary:
            outcomes.update(zip(ordinary, await self._send(caller, list(ordinary.values())), strict=True))
        for index, (own, message, delay) in halves.items():
            outcome = await self._prepare(caller, own, message, delay)
            if _under_anothers_id(outcome):
                outcome = await self._prepare(caller, *_renamed(caller, own, message), delay)
            outcomes[index] = outcome
        response = service_pb2.SendMessageResponse()
        for index, given in enumerate(request.messages):
            _fill_entry(response.entries.add(), given.system_properties, outcomes[index])
        response.status.CopyFrom(together([entry.status for entry in response.entries]))
        return response

    async def _send(self, caller: Caller, items: list[OrdinaryMessage | BrokerError]) -> list[Sent | BrokerError]:
        outcomes = await self._sending.send(items)
        again = [index for index, outcome in enumerate(outcomes) if _under_anothers_id(outcome)]
        if again:
            renamed: list[OrdinaryMessage | BrokerError] = []
            for index in again:
                item = items[index]
                if isinstance(item, OrdinaryMessage):
                    renamed.append(OrdinaryMessage(*_renamed(caller, item.message_id or b"", item.message)))
            for index, outcome in zip(again, await self._sending.send(renamed), strict=True):
                outcomes[index] = outcome
        return outcomes

    async def _prepare(self, caller: Caller, own: bytes, message: Message, delay: int) -> PlacedOutcome | BrokerError:
        # RocketMQ's clients have no producer groups: any producer of a topic can answer checks of its transactions.
        try:
            await self._clients.has_transactions(caller, message.topic)
            half = HalfTransaction(own, [message], first_check_delay=delay)
            return (await self._transactions.prepare(producer_group_of(message.topic), [half]))[0]
        except BrokerError as error:
            return error.as_outcome()

    async def end_transaction(self, request: Any, caller: Caller) -> Any:
        """Takes a producer's verdict, or its answer to a check."""
        if not request.transaction_id.strip():
            raise BadRequest("The transaction's id is missing.", Code.INVALID_TRANSACTION_ID, "transaction_id")
        transaction_id = parse_id(request.transaction_id)
        verdict = _VERDICTS.get(request.resolution, CheckVerdict.UNKNOWN)
        # Some clients never set the source of a verdict.
        number = self._clients.open_check(transaction_id, caller)
        self._clients.heard_of(transaction_id, caller)
        answers = request.source == _Source.SOURCE_UNSPECIFIED and number is not None
        if answers or request.source == _Source.SOURCE_SERVER_CHECK:
            groups, topics = await self._bounds_of(request, caller)
            trace = request.trace_context[:LONGEST_TRACE]
            answer = CheckAnswer(caller.client_id, verdict, groups=groups, topics=topics, traceparent=trace)
            await self._take_answer(transaction_id, number, answer)
        elif verdict is not CheckVerdict.UNKNOWN:
            commit = verdict is CheckVerdict.COMMIT
            groups, topics = await self._bounds_of(request, caller)
            work = VerdictWork(
                transaction_id,
                commit,
                VerdictSource.PRODUCER,
                groups=groups,
                topics=topics,
                traceparent=request.trace_context[:LONGEST_TRACE],
            )
            outcome = (await self._transactions.decide([work]))[0]
            if isinstance(outcome, BrokerError):
                raise outcome
        return service_pb2.EndTransactionResponse(status=OK)

    async def _bounds_of(self, request: Any, caller: Caller) -> tuple[frozenset[int] | None, frozenset[int] | None]:
        """What a verdict may be about: the producer group of its topic, which was judged, and messages on that topic.

        Others may have a producer group of this name, with messages on other topics. Where there is none, it is about
        nothing.
        """
        if CALLER.get().unbounded:
            return None, None
        topic, group_id = await self._transactions.numbers_of(
            name_of(request.topic, caller.namespace), producer_group_of(name_of(request.topic, caller.namespace))
        )
        return frozenset() if group_id is None else frozenset({group_id}), frozenset({topic})

    async def _take_answer(self, transaction_id: bytes, number: int | None, answer: CheckAnswer) -> None:
        """Handles an answer to a check without a check number; it is recorded in the history.

        A late answer is not the client's error, and some clients would stop on an error.
        """
        outcome = await self._answers.take(transaction_id, answer, number)
        if isinstance(outcome, Refused | NotFound):
            shown = format_id(transaction_id)
            text = "an answer to a check of transaction %s has no effect: %s"
            _of_clients.info(text, shown, outcome.message, transaction_id=shown, client_id=answer.client_id)
        elif isinstance(outcome, BrokerError):
            raise outcome
        self._clients.answered(transaction_id)

    async def recall(self, request: Any, caller: Caller) -> Any:
        """Recalls a message before its delivery time."""
        handle = request.recall_handle
        if not handle.strip():
            raise BadRequest("The recall handle is missing.", Code.BAD_REQUEST, "recall_handle")
        outcome = (await self._sending.recall([(own_id(handle)[0], 0)], CALLER.get().judge(Action.PUB, Kind.TOPIC)))[0]
        if isinstance(outcome, NotFound):
            raise BadRequest(
                f"No message waits under this recall handle in {name_of(request.topic, caller.namespace)!r}; use the"
                " one that came with the send receipt.",
                Code.BAD_REQUEST,
                "recall_handle",
            )
        if isinstance(outcome, Refused):
            raise BadRequest(outcome.message, Code.BAD_REQUEST, "recall_handle")
        if isinstance(outcome, BrokerError):
            raise outcome
        return service_pb2.RecallMessageResponse(status=OK, message_id=handle)


def _under_anothers_id(outcome: Sent | PlacedOutcome | BrokerError) -> bool:
    """Whether another message was stored under this id before: see `_renamed`."""
    if isinstance(outcome, PlacedOutcome):
        # Half messages are resent before they are decided, not after.
        return outcome.state is not TransactionState.PREPARED
    return isinstance(outcome, VerdictConflict) or (isinstance(outcome, AlreadyExists) and outcome.reason in _REUSED)


def _renamed(caller: Caller, own: bytes, message: Message) -> tuple[bytes, Message]:
    """Gives a new id to a message whose id was also generated by another client.

    Ids consist of the network card, the process, the second of its start, and a counter: in containers on several
    machines these may all be equal. The message must not be taken for the other one, and keeps the id that its client
    knows.
    """
    name = (message.notes or {}).get(ROCKETMQ_ID) or rocketmq_id(own)
    message.notes = {**(message.notes or {}), ROCKETMQ_ID: name}
    return own_id(f"{caller.client_id}/{name}")[0], message


_REUSED = {"MESSAGE_ID_REUSED", "TRANSACTION_ID_REUSED"}
_FIELDS = ((Type.FIFO, "message_group"), (Type.DELAY, "delivery_timestamp"), (Type.PRIORITY, "priority"))


def _check_type(system: Any) -> None:
    """Refuses a message whose type contradicts its fields, and unsupported types."""
    kind = system.message_type
    if kind == Type.LITE or system.HasField("lite_topic"):
        raise Unsupported("There are no lite topics here; use a topic, with message groups or tags.")
    for wanted, field in _FIELDS:
        if kind == wanted and not (system.HasField(field) and getattr(system, field) != ""):
            raise BadRequest(
                f"A message of the type {Type.Name(kind)} needs {field}.",
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                field,
            )


def _fill_entry(entry: Any, system: Any, outcome: Sent | PlacedOutcome | BrokerError) -> None:
    entry.message_id = system.message_id
    if isinstance(outcome, BrokerError):
        if isinstance(outcome, InvalidArgument):
            outcome.field = outcome.field.removeprefix("messages[0].")
        entry.status.CopyFrom(status_of(outcome))
        return
    entry.status.CopyFrom(OK)
    if isinstance(outcome, Sent):
        entry.offset = outcome.position.offset
        if outcome.position.scheduled_at is not None:
            entry.recall_handle = rocketmq_id(parse_id(outcome.position.message_id))
    else:
        entry.transaction_id = format_id(outcome.transaction_id)
        if system.HasField("delivery_timestamp"):
            entry.recall_handle = rocketmq_id(outcome.transaction_id)


def together(statuses: Sequence[Any]) -> Any:
    """The status of the answer: the entries' common status, or MULTIPLE_RESULTS."""
    if len({each.code for each in statuses}) == 1:
        return statuses[0]
    return status(Code.MULTIPLE_RESULTS)
