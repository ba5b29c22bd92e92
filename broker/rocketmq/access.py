"""What calls of RocketMQ's protocol need, in the words of its ACL 2.0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.domain.access import Action, Kind, Need
from broker.errors import Denied
from broker.rocketmq.names import name_of, producer_group_of
from broker.rocketmq.protocol import definition_pb2, service_pb2
from broker.services.rights import CALLER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from broker.rocketmq.calls import Caller

_Names = "tuple[Action, Kind, str]"
_Needs = "Callable[[Any, str], Iterable[tuple[Action, Kind, str]]]"


def _topic(action: Action) -> Any:
    return lambda request, namespace: [(action, Kind.TOPIC, name_of(request.topic, namespace))]


def _deciding(request: Any, namespace: str) -> list[tuple[Action, Kind, str]]:
    topic = name_of(request.topic, namespace)
    # Its transactions are those of the producer group with its name, which others may use by halfmq's protocol.
    return [(Action.PUB, Kind.TOPIC, topic), (Action.PUB, Kind.GROUP, producer_group_of(topic))]


def _consuming(request: Any, namespace: str) -> list[tuple[Action, Kind, str]]:
    return [
        (Action.SUB, Kind.TOPIC, name_of(request.topic, namespace)),
        (Action.SUB, Kind.GROUP, name_of(request.group, namespace)),
    ]


def _receiving(request: Any, namespace: str) -> list[tuple[Action, Kind, str]]:
    return [
        (Action.SUB, Kind.TOPIC, name_of(request.message_queue.topic, namespace)),
        (Action.SUB, Kind.GROUP, name_of(request.group, namespace)),
    ]


def _reading(request: Any, namespace: str) -> list[tuple[Action, Kind, str]]:
    return [(Action.SUB, Kind.TOPIC, name_of(request.message_queue.topic, namespace))]


def _heartbeat(request: Any, namespace: str) -> list[tuple[Action, Kind, str]]:
    # Producers have no group.
    return [(Action.SUB, Kind.GROUP, name_of(request.group, namespace))] if request.group.name else []


def _nothing(request: Any, namespace: str) -> list[tuple[Action, Kind, str]]:
    return []


_TRANSACTION = definition_pb2.MessageType.TRANSACTION

NEEDS: Mapping[str, Callable[[Any, str], Iterable[tuple[Action, Kind, str]]]] = {
    # Whoever may send or receive has to find the way: see `judge`.
    "QueryRouteRequest": _topic(Action.PUB | Action.SUB | Action.GET),
    "QueryAssignmentRequest": _consuming,
    "HeartbeatRequest": _heartbeat,
    "NotifyClientTerminationRequest": _heartbeat,
    # Message by message.
    "SendMessageRequest": _nothing,
    "EndTransactionRequest": _deciding,
    "RecallMessageRequest": _topic(Action.PUB),
    "AckMessageRequest": _consuming,
    "ChangeInvisibleDurationRequest": _consuming,
    "ForwardMessageToDeadLetterQueueRequest": _consuming,
    "ReceiveMessageRequest": _receiving,
    "PullMessageRequest": _receiving,
    "UpdateOffsetRequest": _receiving,
    "GetOffsetRequest": _receiving,
    "QueryOffsetRequest": _reading,
    "SyncLiteSubscriptionRequest": _nothing,
}
"""By the name of the request: (actions, of which one is enough; kind; name), of which all are needed."""


def judge(request: Any, caller: Caller) -> None:
    """Judges a request.

    Raises:
        Denied: the caller may not do this, or the request has no entry.
        Overloaded: the caller's tenant has used up its quota.
    """
    if CALLER.get().unbounded:
        return
    needs = NEEDS.get(type(request).__name__)
    if needs is None:
        raise Denied
    _require(needs(request, caller.namespace))
    if isinstance(request, service_pb2.SendMessageRequest) and CALLER.get().tenant:
        messages = request.messages
        CALLER.get().enter_send(waits=any(each.system_properties.message_type == _TRANSACTION for each in messages))
        CALLER.get().sent(len(messages), request.ByteSize())


def judge_settings(settings: Any, caller: Caller) -> None:
    """Judges what a client tells of itself: the topics that it sends to, or its group and what that subscribes to.

    Raises:
        Denied: it may not do this.
    """
    if CALLER.get().unbounded:
        return
    kind = settings.WhichOneof("pub_sub")
    needs: list[tuple[Action, Kind, str]] = []
    if kind == "publishing":
        needs = [(Action.PUB, Kind.TOPIC, name_of(topic, caller.namespace)) for topic in settings.publishing.topics]
    elif kind == "subscription":
        own = settings.subscription
        needs = [(Action.SUB, Kind.GROUP, name_of(own.group, caller.namespace))]
        needs += [(Action.SUB, Kind.TOPIC, name_of(each.topic, caller.namespace)) for each in own.subscriptions]
    _require(needs)


def may_send(topic: str) -> bool:
    """Whether the current caller may send to a topic."""
    return CALLER.get().allows(Action.PUB, Kind.TOPIC, topic)


def may_decide(topic: str) -> bool:
    """Whether the current caller may prepare and decide transactions on a topic that it may send to."""
    return CALLER.get().allows(Action.PUB, Kind.GROUP, producer_group_of(topic))


def may_be_asked(topic: str) -> bool:
    """Whether the current caller may be asked about transactions on a topic."""
    return CALLER.get().may(Action.CHECK, Kind.GROUP, producer_group_of(topic))


def _require(needs: Iterable[tuple[Action, Kind, str]]) -> None:
    CALLER.get().require(Need(actions, kind, name) for actions, kind, name in needs)
