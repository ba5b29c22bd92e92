"""The protocol by hand: grpcurl, which knows no more of it than the broker tells by reflection."""

from __future__ import annotations

import base64
import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from acceptance.pages import need_grpcurl
from broker.rocketmq.protocol import SERVICE, service_pb2
from support.brokers import BrokerProcess
from support.patience import HANG
from support.rocketmq_protocol import new_message_id

if TYPE_CHECKING:
    from acceptance.client import Client

pytest_plugins = ["support.rocketmq_fixtures"]


@pytest.fixture(autouse=True)
def tool() -> None:
    need_grpcurl()


def grpcurl(*arguments: str) -> str:
    done = subprocess.run(
        ["grpcurl", "-plaintext", *arguments], capture_output=True, text=True, check=False, timeout=HANG
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def call(broker: BrokerProcess, method: str, request: Any) -> list[Any]:
    """Makes a call; its answers."""
    header = "x-mq-client-id: by hand"
    printed = grpcurl("-H", header, "-d", json.dumps(request), broker.endpoint, f"{SERVICE}/{method}")
    answers, rest = [], printed.lstrip()
    while rest:
        value, end = json.JSONDecoder().raw_decode(rest)
        answers.append(value)
        rest = rest[end:].lstrip()
    return answers


def test_the_service_is_listed_and_described(raw_broker: BrokerProcess) -> None:
    services = grpcurl(raw_broker.endpoint, "list").split()
    assert SERVICE == "apache.rocketmq.v2.MessagingService"
    assert SERVICE in services
    assert "halfmq.v1.ProducerService" in services
    methods = [method.name for method in service_pb2.DESCRIPTOR.services_by_name["MessagingService"].methods]
    assert grpcurl(raw_broker.endpoint, "list", SERVICE).split() == sorted(f"{SERVICE}.{name}" for name in methods)
    described = grpcurl(raw_broker.endpoint, "describe", SERVICE)
    assert all(f"rpc {name} (" in described for name in methods)
    assert "message_queues" in grpcurl(raw_broker.endpoint, "describe", "apache.rocketmq.v2.QueryRouteResponse")


def test_the_service_is_healthy(raw_broker: BrokerProcess) -> None:
    asked = json.dumps({"service": SERVICE})
    answer = json.loads(grpcurl("-d", asked, raw_broker.endpoint, "grpc.health.v1.Health/Check"))
    assert answer == {"status": "SERVING"}


async def test_a_message_by_hand(raw_broker: BrokerProcess, native: Client) -> None:
    topic, group, name = await native.make_topic(), await native.make_group(), new_message_id()
    where = {"scheme": "DOMAIN_NAME", "addresses": [{"host": "mq.example.com", "port": 8085}]}
    (route,) = call(raw_broker, "QueryRoute", {"topic": {"name": topic}, "endpoints": where})
    assert route["status"] == {"code": "OK", "message": "OK"}
    (queue,) = route["message_queues"]
    assert queue["broker"] == {"name": "mq.example.com:8085", "endpoints": where}
    assert queue["accept_message_types"] == ["NORMAL", "FIFO", "DELAY", "TRANSACTION"]
    body = base64.b64encode(b"by hand").decode()
    sent = {"topic": {"name": topic}, "system_properties": {"message_id": name}, "body": body}
    (answer,) = call(raw_broker, "SendMessage", {"messages": [sent]})
    assert answer["entries"][0]["message_id"] == name
    asked = {"group": {"name": group}, "message_queue": {"topic": {"name": topic}}, "invisible_duration": "30s"}
    status, found, last = call(raw_broker, "ReceiveMessage", asked)
    assert status["status"]["code"] == "OK"
    assert (found["message"]["body"], found["message"]["system_properties"]["message_id"]) == (body, name)
    assert list(last) == ["delivery_timestamp"]


def test_what_is_refused_says_why(raw_broker: BrokerProcess) -> None:
    (answer,) = call(raw_broker, "QueryRoute", {"topic": {"name": "nowhere"}})
    assert answer["status"]["code"] == "TOPIC_NOT_FOUND"
    assert "nowhere" in answer["status"]["message"]


def test_a_broker_without_the_gateway_does_not_know_the_service(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("plain")
    with BrokerProcess(f"sqlite:///{folder / 'halfmq.db'}") as broker:
        assert SERVICE not in grpcurl(broker.endpoint, "list").split()
