"""Each alert fires where its cause is made with a real broker; what judges is Prometheus."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import yaml

from broker.wire.credentials.tokens import hash_of
from consumer_sdk import Consumer
from faults.mysql_proxy import MySqlProxy, SqlError, Then
from halfmq.v1 import producer_pb2, producer_pb2_grpc, query_pb2, transaction_pb2, transaction_pb2_grpc
from producer_sdk import Admin, LocalTransactionState, Message, Producer, TransactionListener, TransactionProducer
from support.alerts import RULES, Scrape, fires
from support.brokers import BrokerProcess
from support.certificates import Authority
from support.databases import connect
from support.metrics import PATIENCE, Samples, await_samples, promtool, samples_of, value
from support.unread import Unread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.databases import Kind

SETTINGS: dict[str, object] = {"metrics_listen": "127.0.0.1:0", "metrics_interval": 0.2, "auto_create": True}
MINUTE = 60_000_000
MIB = 1 << 20


class Undecided(TransactionListener):
    """Never knows."""

    def execute_local_transaction(self, message: object, arg: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    def check_local_transaction(self, message: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN


@pytest.fixture
def database(server_kind: Kind, fresh_database: Callable[[Kind], str]) -> str:
    return fresh_database(server_kind)


@contextmanager
def sql(url: str, *, autocommit: bool = True) -> Iterator[Any]:
    """Statements on the broker's database."""
    with connect(url, autocommit=autocommit) as connection, connection.cursor() as cursor:
        yield cursor


@contextmanager
def queues_held(url: str) -> Iterator[None]:
    """All queues are locked by another session."""
    with sql(url, autocommit=False) as cursor:
        cursor.execute("SELECT queue_id FROM queue FOR UPDATE")
        yield


def sampled(broker: BrokerProcess) -> Scrape:
    """The metrics, once there is a sample."""
    await_samples(broker.metrics_endpoint, lambda found: ("rocketmq_topic_number", frozenset()) in found, "no sample")
    return Scrape.of(broker.metrics_endpoint)


def after(broker: BrokerProcess, holds: Callable[[Samples], bool], what: str) -> Scrape:
    await_samples(broker.metrics_endpoint, holds, what)
    return Scrape.of(broker.metrics_endpoint)


@contextmanager
def silent_producer(broker: BrokerProcess, group: str) -> Iterator[None]:
    """A producer that takes checks and answers none."""
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    requests.put(
        transaction_pb2.CheckTransactionsRequest(register=transaction_pb2.RegisterProducer(producer_group=group))
    )
    with grpc.insecure_channel(broker.endpoint) as channel:
        call = transaction_pb2_grpc.TransactionServiceStub(channel).CheckTransactions(iter(requests.get, None))
        assert next(call).HasField("registered")
        yield
        requests.put(None)
        call.cancel()


def test_the_rules_are_good() -> None:
    assert "SUCCESS" in promtool("check", "rules", str(RULES))


def test_every_alert_is_tested_and_described() -> None:
    names = [rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    files = ("test_alerts.py", "test_prometheus.py", "test_connector_metrics.py", "../connect/kafka/test_source.py")
    here = "".join((Path(__file__).parent / name).read_text() for name in files)
    page = (Path(__file__).parents[2] / "docs" / "monitoring.md").read_text()
    assert [name for name in names if f'"{name}"' not in here] == []
    assert [name for name in names if f"| `{name}` |" not in page] == []


def without(scrape: Scrape, name: str) -> Scrape:
    """The metrics without one of them."""
    return Scrape("\n".join(line for line in scrape.text.splitlines() if name not in line) + "\n", scrape.at)


def test_a_group_without_producers(database: str, tmp_path: Path) -> None:
    with BrokerProcess(database, first_check=0.1, **SETTINGS) as broker:
        before = sampled(broker)
        with TransactionProducer(broker.endpoint, "shop", None) as producer:
            producer.prepare(Message("orders", "x"))

        def alone(found: Samples) -> bool:
            alone = value(found, "halfmq_half_messages_without_producer", producer_group="shop") == 1
            return alone and 0 < value(found, "halfmq_check_overdue_seconds") < 60

        then = after(broker, alone, "it is not known that nobody is there")
    fires(tmp_path, "HalfmqProducersMissing", before, then, producer_group="shop")
    # As it is where brokers cannot tell whether there are producers.
    unknown = without(then, "halfmq_half_messages_without_producer")
    with pytest.raises(AssertionError, match="ALERTS"):
        fires(tmp_path, "HalfmqProducersMissing", before, unknown, producer_group="shop")


def test_a_group_without_producers_as_far_as_is_known_and_a_transaction_that_stays(
    database: str, tmp_path: Path
) -> None:
    with BrokerProcess(database, **SETTINGS) as broker:
        before = sampled(broker)
        with TransactionProducer(broker.endpoint, "shop", Undecided()) as producer:
            producer.prepare(Message("orders", "x"))
        with sql(database) as cursor:
            cursor.execute(
                f"UPDATE half_message SET check_due_at = check_due_at - {2 * MINUTE}, born_at = born_at - {60 * MINUTE}"
            )
        then = after(broker, lambda found: value(found, "halfmq_check_overdue_seconds") > 60, "not overdue")
    unknown = without(then, "halfmq_half_messages_without_producer")
    fires(tmp_path, "HalfmqProducersMissing", before, unknown, producer_group="shop")
    fires(tmp_path, "HalfmqHalfMessageOld", before, then, producer_group="shop")


def test_producers_that_do_not_get_their_checks(database: str, tmp_path: Path) -> None:
    with (
        BrokerProcess(database, first_check=3600, **SETTINGS) as broker,
        TransactionProducer(broker.endpoint, "shop", Undecided()) as producer,
    ):
        producer.prepare(Message("orders", "x"))
        before = after(broker, lambda found: value(found, "rocketmq_producer_connections") == 1, "no producer")
        with sql(database, autocommit=False) as holding, sql(database) as cursor:
            cursor.execute("SELECT transaction_id FROM half_message")
            # The record of its first check is held by another session, so that the check cannot be counted.
            holding.execute(
                "INSERT INTO transaction_check (transaction_id, check_number, sent_at, broker_id, client_id)"
                " VALUES (%s, 1, 1, '', '')",
                cursor.fetchall()[0],
            )
            cursor.execute(f"UPDATE half_message SET check_due_at = check_due_at - {62 * MINUTE}")
            then = after(broker, lambda found: value(found, "halfmq_check_overdue_seconds") > 60, "not overdue")
            holding.connection.rollback()
    fires(tmp_path, "HalfmqChecksOverdue", before, then, producer_group="shop")


def test_checks_without_answers_and_then_parked(database: str, tmp_path: Path) -> None:
    times = {"first_check": 0.1, "check_interval": 0.2, "max_checks": 6}
    with BrokerProcess(database, **times, **SETTINGS) as broker:
        before = sampled(broker)
        with silent_producer(broker, "shop"):
            producer = TransactionProducer(broker.endpoint, "shop", None)
            with producer:
                producer.prepare(Message("orders", "x"))
            then = after(broker, lambda found: value(found, "halfmq_parked_transactions") == 1, "not parked")
    fires(tmp_path, "HalfmqChecksUnanswered", before, then, producer_group="shop")
    fires(tmp_path, "HalfmqTransactionsParked", before, then, producer_group="shop")


def test_a_database_that_is_gone(database: str, tmp_path: Path) -> None:
    with (
        MySqlProxy.to(database) as proxy,
        BrokerProcess(proxy.url(database), reconnect_timeout=1, **SETTINGS) as broker,
    ):
        before = sampled(broker)
        proxy.close()

        def gone(found: Samples) -> bool:
            lost = value(found, "halfmq_database_errors_total", kind="lost")
            return value(found, "halfmq_database_up") == 0 and lost > 3

        then = after(broker, gone, "the database is there")
    fires(tmp_path, "HalfmqDatabaseUnavailable", before, then)
    fires(tmp_path, "HalfmqDatabaseErrors", before, then, kind="lost")


def of_messages(size: int = 1, count: int = 1) -> producer_pb2.SendRequest:
    request = producer_pb2.SendRequest()
    for _ in range(count):
        request.messages.add(topic="orders", body=b"x" * size)
    return request


def test_a_server_that_takes_no_writes(database: str, tmp_path: Path) -> None:
    with (
        MySqlProxy.to(database) as proxy,
        BrokerProcess(proxy.url(database), reconnect_timeout=1, **SETTINGS) as broker,
        grpc.insecure_channel(broker.endpoint) as channel,
    ):
        before = sampled(broker)
        refused = SqlError(1290, message="The server is running with the --read-only option")
        proxy.on_statement(r"^INSERT INTO .?message\b", when="before", action=refused, times=None)
        with pytest.raises(grpc.RpcError, match="read only"):
            producer_pb2_grpc.ProducerServiceStub(channel).Send(of_messages(), timeout=PATIENCE)
        then = after(
            broker, lambda found: value(found, "halfmq_database_errors_total", kind="read_only") > 0, "it writes"
        )
    assert value(samples_of(then.text), "halfmq_database_errors_total", kind="lost") == 0
    fires(tmp_path, "HalfmqDatabaseErrors", before, then, kind="read_only")


def test_what_waits_for_the_database_uses_up_its_memory_and_more_is_refused(database: str, tmp_path: Path) -> None:
    with (
        MySqlProxy.to(database) as proxy,
        BrokerProcess(
            proxy.url(database), max_request_bytes=1024 * MIB, reconnect_timeout=2 * PATIENCE, **SETTINGS
        ) as broker,
        grpc.insecure_channel(broker.endpoint) as channel,
    ):
        producer = producer_pb2_grpc.ProducerServiceStub(channel)
        producer.Send(of_messages(), timeout=PATIENCE)
        before = sampled(broker)
        goes_on = threading.Event()
        proxy.on_statement(r"INSERT INTO .?message\b", when="before", action=Then(goes_on.wait), times=None)
        under_way = [producer.Send.future(of_messages(1_000_000, 4)) for _ in range(22)]

        def full(found: Samples) -> bool:
            left = value(found, "halfmq_lane_limit_bytes", lane="send")
            is_full = value(found, "halfmq_lane_waiting_bytes", lane="send") > 0.9 * left
            return is_full and value(found, "halfmq_calls_total", code="RESOURCE_EXHAUSTED") > 0

        try:
            then = after(broker, full, "the lane takes all of it")
        finally:
            goes_on.set()
        for each in under_way:
            each.cancel()
    fires(tmp_path, "HalfmqLimitUsedUp", before, then, lane="send")
    fires(tmp_path, "HalfmqWorkRefused", before, then, method="/halfmq.v1.ProducerService/Send")


def test_a_frozen_worker(database: str, tmp_path: Path) -> None:
    with BrokerProcess(database, workers=2, **SETTINGS) as broker:
        before = after(broker, lambda found: value(found, "halfmq_worker_up") == 2, "not both")
        parent = broker.process.pid
        frozen = int(Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0])
        os.kill(frozen, signal.SIGSTOP)
        try:
            # Metrics are gathered once in half a second: an answer may be from before.
            then = after(broker, lambda found: value(found, "halfmq_worker_up") == 1, "both answer")
        finally:
            os.kill(frozen, signal.SIGCONT)
    fires(tmp_path, "HalfmqWorkerDown", before, then)


def test_nobody_samples(database: str, tmp_path: Path) -> None:
    with BrokerProcess(database, **SETTINGS) as broker:
        before = sampled(broker)
        with sql(database) as cursor:
            # A broker that is gone, and had a clock of its own.
            cursor.execute("UPDATE maintenance_turn SET broker_id = 'gone', until = 1 << 60 WHERE task = 'metrics'")
        key = ("halfmq_sample_timestamp_seconds", frozenset[tuple[str, str]]())
        then = after(broker, lambda found: key not in found, "it still samples")
    fires(tmp_path, "HalfmqNoSample", before, then)


def test_all_streams_are_in_use_and_more_are_refused(database: str, tmp_path: Path) -> None:
    with BrokerProcess(database, max_streams=1, **SETTINGS) as broker, ExitStack() as stack:
        before = sampled(broker)
        stack.enter_context(Consumer(broker.endpoint, "g", "orders")).wait_until_subscribed(PATIENCE)
        stack.enter_context(Consumer(broker.endpoint, "g", "orders"))
        then = after(
            broker, lambda found: value(found, "halfmq_calls_total", code="RESOURCE_EXHAUSTED") > 0, "none is refused"
        )
    fires(tmp_path, "HalfmqLimitUsedUp", before, then, limit="streams")
    fires(tmp_path, "HalfmqWorkRefused", before, then, method="/halfmq.v1.ConsumerService/Consume")


def test_memory_for_answers_is_used_up(database: str, tmp_path: Path) -> None:
    with BrokerProcess(database, max_request_bytes=64 * MIB, **SETTINGS) as broker, ExitStack() as stack:
        channel = stack.enter_context(grpc.insecure_channel(broker.endpoint))
        message = producer_pb2.SendRequest()
        message.messages.add(topic="orders", body=b"x" * 1_000_000)
        sent = producer_pb2_grpc.ProducerServiceStub(channel).Send(message)
        before = sampled(broker)
        look = query_pb2.GetMessageRequest(message_id=sent.results[0].position.message_id).SerializeToString()
        for _ in range(8):
            stack.enter_context(Unread(broker.endpoint, "/halfmq.v1.QueryService/GetMessage", look)).call(14)
        then = after(
            broker, lambda found: value(found, "halfmq_in_use", limit="response_bytes") > 62 * MIB, "it is not used up"
        )
    fires(tmp_path, "HalfmqLimitUsedUp", before, then, limit="response_bytes")


def test_releases_take_long(database: str, tmp_path: Path) -> None:
    with (
        BrokerProcess(database, **SETTINGS) as broker,
        TransactionProducer(broker.endpoint, "shop", Undecided()) as producer,
    ):
        producer.commit(producer.prepare(Message("orders", "x")).transaction_id)
        before = sampled(broker)
        slow = producer.prepare(Message("orders", "x")).transaction_id
        with queues_held(database):
            began = time.monotonic()
            deciding = threading.Thread(target=producer.commit, args=(slow,))
            deciding.start()
            while time.monotonic() - began < 2.0:
                time.sleep(0.1)
        deciding.join(PATIENCE)
        then = after(broker, lambda found: value(found, "halfmq_release_seconds_count") == 2, "it is not released")
    fires(tmp_path, "HalfmqReleaseSlow", before, then)


def test_retention_is_behind(database: str, tmp_path: Path) -> None:
    with BrokerProcess(database, retention_hours=1, **SETTINGS) as broker:
        await_samples(
            broker.metrics_endpoint,
            lambda found: value(found, "halfmq_rounds_total", loop="retention") == 1,
            "no round",
        )
        before = sampled(broker)
        with sql(database) as cursor:
            cursor.execute(
                "INSERT INTO op_record (transaction_id, state, source, half_count, check_count, prepared_at,"
                " decided_at)"
                f" VALUES (REPEAT('x', 16), 2, 1, 1, 0, 1, UNIX_TIMESTAMP() * 1000000 - {180 * MINUTE})"
            )
        then = after(broker, lambda found: value(found, "halfmq_retention_behind_seconds") > 3600, "it is not behind")
    fires(tmp_path, "HalfmqRetentionBehind", before, then)


GONE = SqlError(1146, "42S02", "Table 'dedup_key' doesn't exist")


AWAY = SqlError(1053, "08S01", "Server shutdown in progress")


def after_failures(
    database: str, statement: str, metric: str, loop: str = "retention", error: SqlError = GONE
) -> Scrape:
    """The metrics of a broker whose loop fails at a statement, once one tells so."""
    with MySqlProxy.to(database) as proxy:
        proxy.on_statement(statement, when="before", action=error, times=None)
        with BrokerProcess(proxy.url(database), **{**SETTINGS, "reconnect_timeout": 1}) as broker:
            return after(broker, lambda found: value(found, metric, loop=loop) > 0, "none fails")


def test_a_part_of_retention_fails(database: str, tmp_path: Path) -> None:
    then = after_failures(database, r"FROM .?dedup_key.? WHERE expires_at", "halfmq_failed_pieces_total")
    assert value(samples_of(then.text), "halfmq_failed_rounds_total", loop="retention") == 0
    fires(tmp_path, "HalfmqRetentionBehind", Scrape(), then)


def test_rounds_of_retention_fail(database: str, tmp_path: Path) -> None:
    """What the database says is that it cannot be used, and other parts are not tried."""
    deletion = r"FROM .?dedup_key.? WHERE expires_at"
    then = after_failures(database, deletion, "halfmq_failed_rounds_total", error=AWAY)
    assert value(samples_of(then.text), "halfmq_failed_pieces_total", loop="retention") == 0
    fires(tmp_path, "HalfmqRetentionBehind", Scrape(), then)


def test_no_broker_can_take_the_turn_of_retention(database: str, tmp_path: Path) -> None:
    taking = r"UPDATE .?maintenance_turn.*'retention'"
    then = after_failures(database, taking, "halfmq_failed_pieces_total", loop="turns")
    assert value(samples_of(then.text), "halfmq_failed_pieces_total", loop="retention") == 0
    fires(tmp_path, "HalfmqRetentionBehind", Scrape(), then)


def test_refusals_cannot_be_recorded(database: str, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(f'[admin]\nsha256 = ["{hash_of("x" * 43)}"]\n')
    settings = {"access": True, "access_tokens": tokens, "access_without_tls": True}
    with BrokerProcess(database, **settings, **SETTINGS) as broker, Producer(broker.endpoint) as producer:
        before = sampled(broker)
        with sql(database) as cursor:
            cursor.execute("RENAME TABLE audit_record TO elsewhere")
        with pytest.raises(Exception, match=r"(?i)token|known|credential"):
            producer.send("orders", "x")
        then = after(
            broker,
            lambda found: value(found, "halfmq_failed_rounds_total", loop="audit recorder") > 0,
            "it does not fail",
        )
        with sql(database) as cursor:
            cursor.execute("RENAME TABLE elsewhere TO audit_record")
    fires(tmp_path, "HalfmqAuditNotWritten", before, then)


def test_a_certificate_is_near_its_end(database: str, tmp_path: Path) -> None:
    key, chain = tmp_path / "key.pem", tmp_path / "chain.pem"
    for file, content in zip((key, chain), Authority.make().issue("broker"), strict=True):
        file.write_bytes(content)
    key.chmod(0o600)
    with BrokerProcess(database, tls_key=key, tls_certificate=chain, **SETTINGS) as broker:
        then = sampled(broker)
    before = Scrape("\n".join(line for line in then.text.splitlines() if "_certificate_" not in line) + "\n")
    fires(tmp_path, "HalfmqCertificateEnds", before, then)


def test_a_group_lags_behind(database: str, tmp_path: Path) -> None:
    with BrokerProcess(database, **SETTINGS) as broker, Producer(broker.endpoint) as producer:
        producer.send("orders", "x")
        with Consumer(broker.endpoint, "billing", "orders") as consumer:
            consumer.wait_until_subscribed(PATIENCE)
            consumer.receive(timeout=PATIENCE)[0].ack()
        before = sampled(broker)
        producer.send("orders", "y")
        with sql(database) as cursor:
            cursor.execute(f"UPDATE message SET stored_at = stored_at - {10 * MINUTE}")
        then = after(broker, lambda found: value(found, "rocketmq_consumer_lag_latency") > 300_000, "no lag")
    fires(tmp_path, "HalfmqConsumerLag", before, then, topic="orders", consumer_group="billing")


def test_a_message_becomes_a_dead_letter(database: str, tmp_path: Path) -> None:
    with (
        BrokerProcess(database, **SETTINGS) as broker,
        Producer(broker.endpoint) as producer,
        Admin(broker.endpoint) as admin,
    ):
        producer.send("orders", "x")
        admin.create_group("billing", max_attempts=1)
        before = after(
            broker,
            lambda found: ("rocketmq_send_to_dlq_messages_total", frozenset({("consumer_group", "billing")})) in found,
            "no counter",
        )
        with Consumer(broker.endpoint, "billing", "orders") as consumer:
            consumer.receive(timeout=PATIENCE)[0].nack()
            then = after(
                broker, lambda found: value(found, "rocketmq_send_to_dlq_messages_total") == 1, "no dead letter"
            )
    fires(tmp_path, "HalfmqDeadLetters", before, then, consumer_group="billing")


def test_scheduled_messages_are_late(database: str, tmp_path: Path) -> None:
    with BrokerProcess(database, **SETTINGS) as broker, Producer(broker.endpoint) as producer:
        producer.send("orders", "x", delay=3600)
        before = sampled(broker)
        with queues_held(database):
            with sql(database) as cursor:
                cursor.execute(f"UPDATE scheduled_message SET deliver_at = deliver_at - {62 * MINUTE}")
            then = after(broker, lambda found: value(found, "halfmq_scheduled_late_seconds") > 60, "it is not late")
    fires(tmp_path, "HalfmqScheduledLate", before, then)
