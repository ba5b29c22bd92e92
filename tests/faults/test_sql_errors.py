"""Every statement of every write fails with every kind of error that a server gives to good statements.

A deadlock or a lock wait is overcome without the client's noticing. A server that is read-only or full makes the call
UNAVAILABLE with a time to come back, leaves no trace of it, and is used again as soon as it takes writes.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import grpc
import pytest

from faults.client import UNAVAILABLE, code_of, trailer
from faults.mysql_proxy import Rule, SqlError
from faults.operations import Ack, AckPart, Commit, DeadLetter, Nack, Operation, Prepare, Pull, Rollback, Send
from faults.sites import Proxied
from support.databases import connect, create_database, drop_database, server_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.databases import Kind

PATIENCE = 0.2
COMMIT = "^COMMIT"

# The statements of each write, in their order.
STATEMENTS: dict[type[Operation], tuple[str, ...]] = {
    Prepare: (
        "^SELECT topic_id FROM topic .* LOCK IN SHARE MODE",
        "^INSERT INTO half_message",
        "^SELECT .* FROM op_record",
        COMMIT,
    ),
    Commit: (
        "^SELECT .* FROM half_message .* FOR UPDATE",
        "^UPDATE queue SET stored_bytes",
        "^INSERT INTO op_record",
        "^INSERT INTO message",
        "^DELETE .*half_message",
        COMMIT,
    ),
    Rollback: (
        "^SELECT .* FROM half_message .* FOR UPDATE",
        "^INSERT INTO op_record",
        "^DELETE .*half_message",
        COMMIT,
    ),
    Send: (
        "^SELECT .* FROM op_record",
        "^SELECT .* FROM half_message",
        "^UPDATE queue SET stored_bytes",
        "^INSERT INTO op_record",
        "^INSERT INTO message",
        COMMIT,
    ),
    Pull: (
        "^SELECT lease_id, queue_id FROM lease",
        "^SELECT q.queue_id",
        "^SELECT next_offset FROM group_progress .* SKIP LOCKED",
        "^UPDATE group_progress",
        "^INSERT INTO lease",
        "^SELECT .* FROM message",
    ),
    Ack: ("^SELECT .* FROM lease .* FOR UPDATE", "^DELETE .*lease"),
    AckPart: ("^SELECT .* FROM lease .* FOR UPDATE", "^UPDATE lease"),
    Nack: (
        "^SELECT .* FROM lease .* FOR UPDATE",
        "^SELECT group_id FROM consumer_group .* LOCK IN SHARE MODE",
        "^INSERT INTO lease",
        "^DELETE .*lease",
    ),
    DeadLetter: ("^UPDATE queue SET stored_bytes", "^INSERT INTO message", "^DELETE .*lease"),
}
RETRIED = {1213: ("40001", "Deadlock found"), 1205: ("HY000", "Lock wait timeout exceeded")}
REFUSED = {
    1290: ("HY000", "The server is running with the --read-only option"),
    1114: ("HY000", "The table is full"),
    1021: ("HY000", "Disk full"),
}
TABLES = ("half_message", "op_record", "message", "lease", "transaction_check", "group_progress")


@contextlib.contextmanager
def quiet_broker(kind: Kind, **settings: object) -> Iterator[Proxied]:
    """A broker without checks: nothing but the calls of the tests writes."""
    database = create_database(server_url(kind))
    with Proxied(database, first_check=3600, **settings) as made:
        yield made
    drop_database(database)
    assert made.broker.process.returncode == 0, made.broker.log
    assert made.broker.count("[error") == 0, made.broker.log


@pytest.fixture(scope="module")
def patient(kind: Kind) -> Iterator[Proxied]:
    with quiet_broker(kind) as made:
        yield made


@pytest.fixture(scope="module")
def impatient(kind: Kind) -> Iterator[Proxied]:
    with quiet_broker(kind, patience=PATIENCE) as made:
        yield made


@pytest.mark.parametrize("code", RETRIED)
@pytest.mark.parametrize("operation_type", STATEMENTS, ids=lambda each: each.__name__)
def test_a_conflict_is_overcome(patient: Proxied, operation_type: type[Operation], code: int) -> None:
    proxied, client = patient, patient.client
    proxied.proxy.clear()
    operation = operation_type(client)
    for statement in STATEMENTS[operation_type]:
        operation.arrange(client)
        rule = fail(proxied, operation, statement, SqlError(code, *RETRIED[code]), times=2)
        operation.act(client)
        assert rule.fired == 2, statement
        proxied.proxy.clear()
        operation.confirm(client, lost=False)
    assert operation.reasons == []
    operation.verify(client)


@pytest.mark.parametrize("code", REFUSED)
@pytest.mark.parametrize("operation_type", STATEMENTS, ids=lambda each: each.__name__)
def test_a_server_that_does_not_write(impatient: Proxied, operation_type: type[Operation], code: int) -> None:
    proxied, client = impatient, impatient.client
    proxied.proxy.clear()
    operation = operation_type(client)
    for statement in STATEMENTS[operation_type]:
        operation.arrange(client)
        before = contents(proxied.database)
        rule = fail(proxied, operation, statement, SqlError(code, *REFUSED[code]), times=None)
        with pytest.raises(grpc.RpcError) as refused:
            operation.act(client)
        assert code_of(refused.value) is UNAVAILABLE, statement
        assert int(trailer(refused.value, "halfmq-retry-ms")) > 0
        assert trailer(refused.value, "halfmq-reason") == "STORAGE_UNAVAILABLE"
        assert rule.fired
        proxied.proxy.clear()
        assert contents(proxied.database) == before, statement
        operation.act(client)
        operation.confirm(client, lost=False)
    assert operation.reasons == []
    operation.verify(client)


def fail(proxied: Proxied, operation: Operation, statement: str, error: SqlError, times: int | None) -> Rule:
    """Has a statement fail; of the COMMITs only that of the write itself."""
    if statement == COMMIT:
        return proxied.proxy.on_commit(matching=operation.commits, when="before", action=error, times=times)
    return proxied.proxy.on_statement(statement, when="before", action=error, times=times)


def contents(database: str) -> list[object]:
    """What the tables hold, and where the queues are."""
    with connect(database) as connection, connection.cursor() as cursor:
        found: list[object] = []
        for table in TABLES:
            cursor.execute(f"CHECKSUM TABLE {table}")
            found.append(cursor.fetchall())
        cursor.execute("SELECT queue_id, next_offset FROM queue ORDER BY queue_id")
        return [*found, cursor.fetchall()]
