"""Identities, names, codes and addresses on their way between RocketMQ's protocol and halfmq."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from broker import errors
from broker.domain.dead_letter import dead_letter_topic
from broker.domain.ids import parse_id
from broker.errors import ConfigurationError
from broker.rocketmq.codes import OK, BadRequest, Unauthorized, Unsupported, code_of, status, status_of
from broker.rocketmq.ids import own_id, rocketmq_id
from broker.rocketmq.names import name_of, resource_of
from broker.rocketmq.protocol import Code, definition_pb2
from broker.rocketmq.routes import endpoints_of
from broker.storage.moving.refusals import MoveRefused

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "0156F7E71C361B21BC024CCDBE00000000"
Scheme = definition_pb2.AddressScheme


def resource(name: str, namespace: str = "") -> object:
    return definition_pb2.Resource(resource_namespace=namespace, name=name)


def test_a_clients_name_of_a_message_and_its_identity_tell_each_other() -> None:
    own, exact = own_id(NAME)
    assert (own, exact) == (bytes.fromhex(NAME[2:]), True)
    assert rocketmq_id(own) == NAME
    assert parse_id(NAME) == own


def test_a_name_in_lower_case_is_the_same_identity_but_must_be_kept() -> None:
    assert own_id(NAME.lower()) == (bytes.fromhex(NAME[2:]), False)
    mixed = f"{NAME[:20]}{NAME[20:].lower()}"
    assert own_id(mixed) == (bytes.fromhex(NAME[2:]), False)


@pytest.mark.parametrize(
    "name",
    [
        NAME[2:],
        f"02{NAME[2:]}",
        f"{NAME}0",
        NAME[:-1],
        f"{NAME[:-1]}G",
        f"{NAME}\n",
        f" {NAME}",
        "AC1E0A6C00002A9F0000000000000000",
        "018f2a6e-7b1c-7cc3-9b7e-0c1d2e3f4a5b",
        "x",
        "Grüße",
        "٠١" * 17,
    ],
)
def test_a_name_of_another_form_has_an_identity_and_must_be_kept(name: str) -> None:
    own, exact = own_id(name)
    assert len(own) == 16
    assert not exact
    assert own == own_id(name)[0]
    assert own != own_id(f"{name}.")[0]
    assert own != bytes.fromhex(NAME[2:])


def test_further_messages_of_a_transaction_have_names_of_their_own() -> None:
    own = bytes.fromhex(NAME[2:])
    names = [rocketmq_id(own, position) for position in range(3)]
    assert names == [NAME, f"{NAME}.1", f"{NAME}.2"]


def test_a_namespace_stands_before_the_name() -> None:
    assert name_of(resource("orders"), "") == "orders"
    assert name_of(resource("orders", "shop"), "") == "shop%orders"
    assert name_of(resource("orders", "shop"), "other") == "shop%orders"
    assert name_of(resource("orders"), "other") == "other%orders"


def test_a_namespaces_dead_letters_are_those_of_its_groups() -> None:
    group = name_of(resource("readers", "shop"), "")
    assert name_of(resource("%DLQ%readers", "shop"), "") == dead_letter_topic(group)
    assert name_of(resource("%DLQ%readers"), "shop") == dead_letter_topic(group)
    assert name_of(resource("%DLQ%readers"), "") == dead_letter_topic("readers")


@pytest.mark.parametrize(
    ("name", "namespace", "told"),
    [
        ("orders", "", ("", "orders")),
        ("shop%orders", "", ("", "shop%orders")),
        ("shop%orders", "shop", ("shop", "orders")),
        ("shop%orders", "sho", ("", "shop%orders")),
        ("orders", "shop", ("", "orders")),
        ("shop%shop%orders", "shop", ("shop", "shop%orders")),
        ("%DLQ%shop%readers", "shop", ("shop", "%DLQ%readers")),
        ("%DLQ%readers", "shop", ("", "%DLQ%readers")),
        ("%DLQ%readers", "", ("", "%DLQ%readers")),
    ],
)
def test_a_client_sees_the_names_of_its_namespace_without_it(name: str, namespace: str, told: tuple[str, str]) -> None:
    seen = resource_of(name, namespace)
    assert (seen.resource_namespace, seen.name) == told
    # What it is told, it can say again.
    if seen.resource_namespace or not namespace:
        assert name_of(seen, namespace) == name


CODES = [
    (errors.InvalidArgument("x", field="topic"), Code.ILLEGAL_TOPIC),
    (errors.InvalidArgument("x", field="topics[0]"), Code.ILLEGAL_TOPIC),
    (errors.InvalidArgument("x", field="messages[3].topic"), Code.ILLEGAL_TOPIC),
    (errors.InvalidArgument("x", field="producer_group", reason="NAME_INVALID"), Code.ILLEGAL_TOPIC),
    (errors.InvalidArgument("x", field="consumer_group", reason="NAME_INVALID"), Code.ILLEGAL_CONSUMER_GROUP),
    (errors.InvalidArgument("x", field="group"), Code.ILLEGAL_CONSUMER_GROUP),
    (errors.InvalidArgument("x", field="body"), Code.MESSAGE_BODY_EMPTY),
    (errors.InvalidArgument("x", field="messages[0].body", reason="BODY_TOO_LARGE"), Code.MESSAGE_BODY_TOO_LARGE),
    (errors.InvalidArgument("x", field="tag"), Code.ILLEGAL_MESSAGE_TAG),
    (errors.InvalidArgument("x", field="keys"), Code.ILLEGAL_MESSAGE_KEY),
    (errors.InvalidArgument("x", field="message_group"), Code.ILLEGAL_MESSAGE_GROUP),
    (errors.InvalidArgument("x", field="properties"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    (errors.InvalidArgument("x", field="properties", reason="PROPERTIES_TOO_LARGE"), Code.MESSAGE_PROPERTIES_TOO_LARGE),
    (errors.InvalidArgument("x", field="delivery_timestamp"), Code.ILLEGAL_DELIVERY_TIME),
    (errors.InvalidArgument("x", field="deliver_at", reason="DELAY_TOO_LONG"), Code.ILLEGAL_DELIVERY_TIME),
    (errors.InvalidArgument("x", field="priority"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    (errors.InvalidArgument("x", field="transaction_id"), Code.INVALID_TRANSACTION_ID),
    (errors.InvalidArgument("x", field="message_id"), Code.ILLEGAL_MESSAGE_ID),
    (errors.InvalidArgument("x", field="receipt_handle", reason="RECEIPT_INVALID"), Code.INVALID_RECEIPT_HANDLE),
    (errors.InvalidArgument("x", field="duration"), Code.ILLEGAL_INVISIBLE_TIME),
    (errors.InvalidArgument("x", field="delay"), Code.ILLEGAL_INVISIBLE_TIME),
    (errors.InvalidArgument("x", field="lease_duration"), Code.ILLEGAL_INVISIBLE_TIME),
    (errors.InvalidArgument("x", field="wait"), Code.ILLEGAL_POLLING_TIME),
    (errors.InvalidArgument("x", field="queues[0].offset"), Code.ILLEGAL_OFFSET),
    (errors.InvalidArgument("x", field="filter_expression", reason="FILTER_INVALID"), Code.ILLEGAL_FILTER_EXPRESSION),
    (errors.InvalidArgument("x", field="anything else"), Code.BAD_REQUEST),
    (errors.NotFound("x", reason="TOPIC_NOT_FOUND", field="messages[0].topic"), Code.TOPIC_NOT_FOUND),
    (errors.NotFound("x", reason="GROUP_NOT_FOUND"), Code.CONSUMER_GROUP_NOT_FOUND),
    (errors.NotFound("x", reason="TRANSACTION_NOT_FOUND"), Code.INVALID_TRANSACTION_ID),
    (errors.NotFound("x", reason="MESSAGE_NOT_FOUND"), Code.NOT_FOUND),
    (errors.VerdictConflict("x", state=2), Code.INVALID_TRANSACTION_ID),
    (errors.StaleReceipt("x", reason="RECEIPT_GONE"), Code.INVALID_RECEIPT_HANDLE),
    (errors.OffsetLost("orders", 0, 5, (3, 9), "offset"), Code.ILLEGAL_OFFSET),
    (errors.Refused("x", reason="OTHER_FILTER"), Code.PRECONDITION_FAILED),
    (errors.BehindRefused(), Code.PRECONDITION_FAILED),
    (errors.AlreadyExists("x", reason="MESSAGE_ID_REUSED"), Code.PRECONDITION_FAILED),
    (errors.Overloaded("x", retry_after=1.0), Code.TOO_MANY_REQUESTS),
    (errors.ClientOverloaded("calls", 1, 1.0), Code.TOO_MANY_REQUESTS),
    (errors.StorageUnavailable("x"), Code.HA_NOT_AVAILABLE),
    (errors.RowsLocked("x"), Code.HA_NOT_AVAILABLE),
    (errors.CellAway("x"), Code.HA_NOT_AVAILABLE),
    (errors.Moved("x"), Code.HA_NOT_AVAILABLE),
    (errors.StorageRejected("x"), Code.INTERNAL_SERVER_ERROR),
    (errors.StoredBodyBroken("x"), Code.INTERNAL_SERVER_ERROR),
    (errors.Unauthenticated(), Code.UNAUTHORIZED),
    (errors.Denied(), Code.FORBIDDEN),
    (errors.BrokerError("x", reason="NEW"), Code.INTERNAL_SERVER_ERROR),
    (BadRequest("x", Code.ILLEGAL_ACCESS_POINT, "endpoints"), Code.ILLEGAL_ACCESS_POINT),
    (Unauthorized("x"), Code.UNAUTHORIZED),
    (Unsupported("x"), Code.UNSUPPORTED),
]


@pytest.mark.parametrize(("error", "code"), CODES, ids=[f"{type(e).__name__}-{e.field or e.reason}" for e, _ in CODES])
def test_every_error_has_a_code(error: errors.BrokerError, code: int) -> None:
    assert code_of(error) == code
    told = status_of(error)
    assert told.code == code
    assert told.message == ": ".join(filter(None, [Code.Name(code), error.field, error.message]))


def kinds(kind: type[errors.BrokerError] = errors.BrokerError) -> Iterator[type[errors.BrokerError]]:
    for each in kind.__subclasses__():
        yield each
        yield from kinds(each)


def test_every_kind_of_error_is_in_the_table_above() -> None:
    # The configuration is refused before there are calls, and commands refuse what they are given.
    never_told = {ConfigurationError, errors.DatabaseReplaced, MoveRefused}
    of_the_broker = {kind for kind in kinds() if kind.__module__.startswith("broker.")} - never_told
    assert {type(error) for error, _ in CODES} >= of_the_broker


def test_a_status_has_always_a_text() -> None:
    assert (OK.code, OK.message) == (Code.OK, "OK")
    assert status(Code.MESSAGE_NOT_FOUND).message == "MESSAGE_NOT_FOUND"
    assert status(Code.MESSAGE_NOT_FOUND, "no new message").message == "no new message"


@pytest.mark.parametrize(
    ("text", "scheme", "host", "port"),
    [
        ("mq.example.com:8085", Scheme.DOMAIN_NAME, "mq.example.com", 8085),
        (" mq:1 ", Scheme.DOMAIN_NAME, "mq", 1),
        ("10.0.0.1:65535", Scheme.IPv4, "10.0.0.1", 65535),
        ("1.2.3.com:80", Scheme.DOMAIN_NAME, "1.2.3.com", 80),
        ("[::1]:8085", Scheme.IPv6, "[::1]", 8085),
        ("::1:8085", Scheme.IPv6, "::1", 8085),
    ],
)
def test_an_address_to_announce(text: str, scheme: int, host: str, port: int) -> None:
    (told,) = endpoints_of(text)
    assert told.scheme == scheme
    assert [(each.host, each.port) for each in told.addresses] == [(host, port)]


def test_numeric_addresses_of_a_kind_are_announced_together_and_names_apart() -> None:
    told = endpoints_of("10.0.0.1:1, mq:1,10.0.0.2:1,,mq:2,[::1]:1, [::2]:1 ,")
    assert [(each.scheme, [f"{at.host}:{at.port}" for at in each.addresses]) for each in told] == [
        (Scheme.IPv4, ["10.0.0.1:1", "10.0.0.2:1"]),
        (Scheme.DOMAIN_NAME, ["mq:1"]),
        (Scheme.DOMAIN_NAME, ["mq:2"]),
        (Scheme.IPv6, ["[::1]:1", "[::2]:1"]),
    ]
    assert endpoints_of("") == []


@pytest.mark.parametrize(
    "text", ["mq", ":8085", "mq:", "mq:0", "mq:65536", "mq:-1", "mq:x", "mq:٣", "mq: 80", "mq:8_0"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(repr(text.strip()))) as refused:
        endpoints_of(text)
    assert refused.value.field == "rocketmq_endpoints"
    assert "host:port" in refused.value.message
