"""Writes about transactions without a verdict: what operators decide, and whom a check went to."""

from __future__ import annotations

from typing import ClassVar

from faults.client import COMMITTED, PREPARED, ROLLED_BACK, Client, new_id
from faults.operations import MAX_CHECKS, CheckClaim, Operation
from halfmq.v1 import admin_pb2, transaction_pb2


class Resolve(Operation):
    """An operator's word; it is kept with the transaction."""

    commits = "INSERT INTO operator_action"
    resolution: ClassVar[admin_pb2.Resolution.ValueType]
    action: ClassVar[str]
    state: ClassVar[transaction_pb2.TransactionState.ValueType]

    def arrange(self, client: Client) -> None:
        self.next_body()
        self.transaction_id = new_id()
        client.prepare(self.producers, self.transaction_id, self.messages(), check_after=3600)

    def act(self, client: Client) -> None:
        client.resolve(self.transaction_id, self.resolution)

    def survey(self, client: Client, *, worked: bool) -> None:
        found = client.transaction(self.transaction_id)
        assert found.state == (self.state if worked else PREPARED)
        assert [each.action for each in found.operator_actions] == ([self.action] if worked else [])

    def confirm(self, client: Client, *, lost: bool) -> None:
        found = client.transaction(self.transaction_id)
        assert found.state == self.state
        assert found.op.source == transaction_pb2.VERDICT_SOURCE_OPERATOR
        assert [each.action for each in found.operator_actions] == [self.action]
        if found.state == COMMITTED:
            self.expected += self.bodies()


class ResolveCommit(Resolve):
    resolution = admin_pb2.RESOLUTION_COMMIT
    action = "COMMIT"
    state = COMMITTED


class ResolveRollback(Resolve):
    resolution = admin_pb2.RESOLUTION_ROLLBACK
    action = "ROLLBACK"
    state = ROLLED_BACK


class ResolveCheckAgain(Resolve):
    """The transaction is due at once. Said twice it is noted twice, and grants no more checks than said once."""

    resolution = admin_pb2.RESOLUTION_CHECK_AGAIN
    action = "CHECK_AGAIN"
    state = PREPARED

    def confirm(self, client: Client, *, lost: bool) -> None:
        found = client.transaction(self.transaction_id)
        assert [each.action for each in found.operator_actions] == [self.action] * (2 if lost else 1)
        with client.checks(self.producers) as checks:
            check = checks.next(self.transaction_id)
            assert (check.check_number, check.max_checks) == (1, MAX_CHECKS)
            checks.commit(check)
        assert client.transaction(self.transaction_id).state == COMMITTED
        self.expected += self.bodies()


class CheckSent(CheckClaim):
    """The note of which producer a check went to. The check is counted before, and spent whether it is noted or not."""

    commits = "UPDATE transaction_check SET client_id"

    def act(self, client: Client) -> None:
        with client.checks(self.producers) as checks:
            self.check = checks.next(self.transaction_id)
            if self.check.check_number == 1:
                for _ in checks:  # Until the broker dies. An answer would tell who was asked, too.
                    pass
            checks.commit(self.check)

    def survey(self, client: Client, *, worked: bool) -> None:
        found = client.transaction(self.transaction_id)
        assert (found.state, found.check_count) == (PREPARED, 1)
        assert [each.client_id for each in found.checks] == ["asked" if worked else ""]

    def confirm(self, client: Client, *, lost: bool) -> None:
        assert self.check.check_number == 2
        self.confirm_verdict(client)


RESOLUTION_OPERATIONS: tuple[type[Operation], ...] = (ResolveCommit, ResolveRollback, ResolveCheckAgain, CheckSent)
