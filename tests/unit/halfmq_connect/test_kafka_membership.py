"""A group of Kafka that refuses a replica: it is told, and not waited for."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from halfmq_connect.kafka import membership as membership_module
from halfmq_connect.kafka.membership import Membership


@pytest.mark.parametrize(
    ("code", "told"), [(KafkaError.GROUP_AUTHORIZATION_FAILED, True), (KafkaError._TRANSPORT, False)]
)
def test_an_error_of_the_group(monkeypatch: pytest.MonkeyPatch, code: int, told: bool) -> None:
    class Answer:
        def error(self) -> KafkaError:
            return KafkaError(code)

    class Consumer:
        def __init__(self, settings: object) -> None: ...

        def subscribe(self, topics: object, **_: object) -> None: ...

        def poll(self, seconds: float) -> Answer:
            return Answer()

    monkeypatch.setattr(membership_module, "Consumer", Consumer)
    member = Membership(
        {}, "group", "topic", instance=None, session_timeout=10, gained=lambda _: None, lost=lambda _: None
    )
    if told:
        with pytest.raises(KafkaException):
            member.poll(0)
    else:
        member.poll(0)
