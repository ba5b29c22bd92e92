from __future__ import annotations

import contextlib
import pickle
import uuid
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_core.connection import parse_endpoints, reason_of
from client_core.ids import new_id
from producer_sdk import (
    AsyncTransactionListener,
    AsyncTransactionProducer,
    BatchLimits,
    BatchRefused,
    ConfigurationError,
    HalfMessages,
    HalfmqError,
    LocalTransactionState,
    Message,
    RequestRefused,
    RetryConfig,
    TlsConfig,
    TransactionProducer,
    TransactionState,
)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("localhost:8085", ("localhost:8085",)),
        ("a:1,b:2", ("a:1", "b:2")),
        (" a:1 , b:2 ,", ("a:1", "b:2")),
        (["a:1", "b:2,c:3"], ("a:1", "b:2", "c:3")),
        ("a:1,a:1", ("a:1",)),
        ("[::1]:8081", ("[::1]:8081",)),
        ("unix:/run/halfmq.sock", ("unix:/run/halfmq.sock",)),
    ],
)
def test_endpoints_are_taken_apart(written: str | list[str], meant: tuple[str, ...]) -> None:
    assert parse_endpoints(written) == meant


@pytest.mark.parametrize(
    "written", ["", ",", [], "localhost", ":8081", "a:b", "a:0", "a:65536", "::1:80", "http://a:1"]
)
def test_what_is_no_endpoint_is_refused(written: str | list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_endpoints(written)
    assert caught.value.field == "endpoint"


@given(st.text())
def test_any_text_is_an_endpoint_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        assert all(":" in target for target in parse_endpoints(text))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("attempts", 0),
        ("attempts", 1.5),
        ("attempts", True),
        ("initial_backoff", 0),
        ("maximum_backoff", 0.01),
        ("multiplier", 0.5),
        ("deadline", -1),
        ("deadline", float("inf")),
        ("attempt_timeout", 0),
        ("attempt_timeout", "1"),
    ],
)
def test_retry_settings_that_cannot_work_are_refused(setting: str, value: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RetryConfig(**{setting: value})  # type: ignore[arg-type]
    assert caught.value.field == setting


@given(st.integers(min_value=1, max_value=10_000))
def test_backoffs_stay_between_half_of_the_first_and_the_maximum(failures: int) -> None:
    retry = RetryConfig()
    assert retry.initial_backoff / 2 <= retry.backoff(failures) <= retry.maximum_backoff


@pytest.mark.parametrize(
    "settings",
    [
        {"client_key": b"-----BEGIN"},
        {"client_certificate": b"-----BEGIN"},
        {"root_certificates": "/etc/ca.pem"},
        {"root_certificates": b"no PEM"},
        {"root_certificates": b""},
        {"server_name": ""},
        {"server_name": 5},
    ],
)
def test_half_of_a_key_pair_is_refused(settings: dict[str, bytes]) -> None:
    with pytest.raises(ConfigurationError):
        TlsConfig(**settings)  # type: ignore[arg-type]


def test_the_key_is_not_shown() -> None:
    assert "secret" not in repr(TlsConfig(client_certificate=b"-----BEGIN c", client_key=b"-----BEGIN secret"))


@pytest.mark.parametrize("setting", ["items", "size", "in_flight"])
def test_batch_limits_that_cannot_work_are_refused(setting: str) -> None:
    with pytest.raises(ConfigurationError):
        BatchLimits(**{setting: 0})


class Answers(AsyncTransactionListener):
    async def execute_local_transaction(self, messages: HalfMessages, arg: object) -> LocalTransactionState:
        raise NotImplementedError

    async def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        raise NotImplementedError


def test_producers_refuse_settings_that_cannot_work() -> None:
    with pytest.raises(ConfigurationError, match="group"):
        TransactionProducer("a:1", "")
    with pytest.raises(ConfigurationError, match="AsyncTransactionProducer"):
        TransactionProducer("a:1", "g", Answers())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="listener"):
        AsyncTransactionProducer("a:1", "g", object())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="listener_concurrency"):
        AsyncTransactionProducer("a:1", "g", Answers(), listener_concurrency=0)


def test_ids_are_uuids_of_version_7_that_grow() -> None:
    made = [new_id() for _ in range(10_000)]
    assert made == sorted(set(made))
    assert all(uuid.UUID(text).version == 7 and str(uuid.UUID(text)) == text for text in made[:100])
    assert uuid.UUID(made[0]).variant == uuid.RFC_4122


def test_errors_keep_their_data_when_pickled() -> None:
    error = RequestRefused(
        "no", code=grpc.StatusCode.NOT_FOUND, reason="R", field="f", transaction_id="t", state=TransactionState.PARKED
    )
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.reason, copy.field, copy.transaction_id, copy.state) == ("R", "f", "t", TransactionState.PARKED)
    assert copy.code is grpc.StatusCode.NOT_FOUND
    batch = pickle.loads(pickle.dumps(BatchRefused("some", [error])))
    assert isinstance(batch.outcomes[0], HalfmqError)


def test_reasons_are_short_and_can_travel() -> None:
    class Rude(Exception):
        def __repr__(self) -> str:
            raise RuntimeError

    assert reason_of(Rude()) == "Rude"
    assert len(reason_of(ValueError("x" * 1_000))) == 500
    reason_of(type("E", (Exception,), {"__repr__": lambda _: "\udc80"})()).encode()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("endpoint", None),
        ("endpoint", [5]),
        ("group", 5),
        ("group", "a shop"),
        ("group", "g" * 121),
        ("group", "\udc80"),
        ("client_id", 5),
        ("client_id", "x" * 300),
        ("client_id", "a\x00"),
        ("retry", {"deadline": 5}),
        ("tls", {}),
        ("batching", {"items": 5}),
        ("listener_concurrency", "3"),
        ("close_grace", "a"),
        ("close_grace", -1),
        ("close_grace", float("nan")),
    ],
)
@pytest.mark.parametrize("kind", [TransactionProducer, AsyncTransactionProducer])
def test_producers_name_the_setting_at_fault(kind: type, setting: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=setting) as caught:
        kind(**{"endpoint": "a:1", "group": "g", setting: value})
    assert caught.value.field == setting


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("topic", 5, TypeError),
        ("topic", "\udc80", ValueError),
        ("body", 5, TypeError),
        ("body", "\udc80", ValueError),
        ("tag", 5, TypeError),
        ("message_group", 3, TypeError),
        ("properties", {"a": 1}, TypeError),
        ("properties", {1: "a"}, TypeError),
        ("properties", ["a"], TypeError),
        ("keys", [5], TypeError),
        ("keys", 5, TypeError),
        ("keys", b"abc", TypeError),
    ],
)
async def test_a_message_names_the_argument_at_fault(field: str, value: object, kind: type[Exception]) -> None:
    arguments = {"topic": "orders", "body": "x", field: value}
    name = {"properties": "propert", "keys": "key"}.get(field, field)
    async with AsyncTransactionProducer("a:1", "g") as producer:
        with pytest.raises(kind, match=f"{name}.* of a message|message's {name}"):
            await producer.send(**arguments)  # type: ignore[arg-type]
        with pytest.raises(kind, match=name):
            await producer.transaction().send_many([Message(**arguments)])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("first_check_delay", float("nan"), ValueError),
        ("first_check_delay", float("inf"), ValueError),
        ("first_check_delay", 1e30, ValueError),
        ("first_check_delay", "5", TypeError),
        ("first_position", "1", TypeError),
        ("first_position", -1, ValueError),
        ("messages", 5, TypeError),
    ],
)
async def test_prepare_names_the_argument_at_fault(name: str, value: object, kind: type[Exception]) -> None:
    async with AsyncTransactionProducer("a:1", "g") as producer:
        with pytest.raises(kind, match="Message" if name == "messages" else name):
            await producer.prepare(**{"messages": Message("orders", "x"), name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("reason", "kind"), [(ValueError("x"), TypeError), ("\udc80", ValueError)])
async def test_rollback_names_the_reason(reason: Any, kind: type[Exception]) -> None:
    async with AsyncTransactionProducer("a:1", "g") as producer:
        with pytest.raises(kind, match="reason"):
            await producer.rollback(new_id(), reason)
        with pytest.raises(kind, match="reason"):
            await producer.transaction().rollback(reason)
