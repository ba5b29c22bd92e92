"""The storage against its model, in random order; and the model against seeded bugs, which it must find.

HYPOTHESIS_PROFILE=full runs 10,000 examples of 50 steps on SQLite (about half an hour) and 500 on each server:

    HYPOTHESIS_PROFILE=full pytest tests/conformance/test_model.py -k behaves
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from broker.domain.check_policy import CheckPolicy
from broker.domain.lease import Lease
from broker.domain.retry import RetryPolicy
from broker.domain.transaction import TransactionState
from broker.ports.delivery import Claimed, ClaimWork
from broker.ports.transactions import TransactionOutcome, VerdictWork
from broker.storage.delivery import claims, fencing, group_views, leases, message_groups, receipts, redrive, settlement
from broker.storage.groups import groups, progress
from broker.storage.log import release_plan
from broker.storage.transactions import verdicts
from conformance.model.machine import Model
from conformance.rig import ItemRejected, Rig
from conformance.world import LEASE, PREFIXES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.storage.delivery.handout import Handout
    from conformance.world import Databases
    from support.databases import AnyKind

FULL = os.environ.get("HYPOTHESIS_PROFILE") == "full"
EXAMPLES = {"sqlite": 10_000 if FULL else 150, "mariadb": 500 if FULL else 15, "mysql": 500 if FULL else 15}
COMMON = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck), "report_multiple_bugs": False}

pytestmark = pytest.mark.timeout(0 if FULL else 600)


@pytest.fixture
def rig(kind: AnyKind, databases: Databases) -> Iterator[Rig]:
    """Two stores on a database; SQLite's file lies in memory where there is such a place, for speed."""
    url = databases.empty(kind)
    folder = None
    if kind == "sqlite" and Path("/dev/shm").is_dir():
        folder = tempfile.mkdtemp(dir="/dev/shm")
        shutil.copy(url.removeprefix("sqlite:///"), f"{folder}/model.db")
        url = f"sqlite:///{folder}/model.db"
    made = Rig(url, PREFIXES.get(kind, ""))
    yield made
    made.close()
    if folder:
        shutil.rmtree(folder)


def on(rig: Rig) -> type[Model]:
    return type("ModelOnRig", (Model,), {"rig": rig})


def test_the_storage_behaves_as_its_model(kind: AnyKind, rig: Rig) -> None:
    run_state_machine_as_test(
        on(rig), settings=settings(max_examples=EXAMPLES[kind], stateful_step_count=50 if FULL else 30, **COMMON)
    )


def _never_refuses(patch: pytest.MonkeyPatch) -> None:
    real = fencing.refusal_of
    for module in (fencing, receipts, settlement):
        patch.setattr(module, "refusal_of", lambda lease, receipt: real(lease, receipt) if lease is None else None)


def _skips_an_offset(patch: pytest.MonkeyPatch) -> None:
    real = release_plan.take_offsets
    patch.setattr(release_plan, "take_offsets", lambda *rest: {q: n + 1 for q, n in real(*rest).items()})


def _commits_after_rollback(patch: pytest.MonkeyPatch) -> None:
    real = verdicts._judge

    def judge(item: VerdictWork, pending: object, recorded: TransactionOutcome | None, *rest: object) -> object:
        if item.commit and recorded and recorded.state is TransactionState.ROLLED_BACK:
            return TransactionOutcome(item.transaction_id, TransactionState.COMMITTED)
        return real(item, pending, recorded, *rest)  # type: ignore[arg-type]

    patch.setattr(verdicts, "_judge", judge)


def _releases_what_was_rolled_back(patch: pytest.MonkeyPatch) -> None:
    real = verdicts._apply

    def apply(session: object, decided: dict[bytes, VerdictWork], *rest: object) -> bool:
        return real(session, {i: replace(item, commit=True) for i, item in decided.items()}, *rest)  # type: ignore[arg-type]

    patch.setattr(verdicts, "_apply", apply)


def _takes_leases_too_early(patch: pytest.MonkeyPatch) -> None:
    real = claims.redeliver

    def redeliver(handout: Handout, item: ClaimWork, due: object, budget: object, claimed: Claimed) -> object:
        handout.now += LEASE
        taken = real(handout, item, due, budget, claimed)  # type: ignore[arg-type]
        handout.now -= LEASE
        # Deliveries with the lease time they should have: only the double delivery is wrong.
        claimed.parts[:] = [replace(each, expires_at=handout.now + LEASE) for each in claimed.parts]
        return taken

    patch.setattr(claims, "redeliver", redeliver)
    patch.setattr(claims, "DUE_LEASES", claims.DUE_LEASES.replace("available_at <= ?", f"available_at <= ? + {LEASE}"))


def _forgets_acks(patch: pytest.MonkeyPatch) -> None:
    real = leases.storing
    patch.setattr(leases, "storing", lambda lease: real(replace(lease, settled=lease.moved)))


def _gives_a_group_to_two(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(message_groups, "groups_with_leases", lambda *_: set())


def _forgets_whose_turn_it_is(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(message_groups, "_free_next", lambda *_: False)


def _gives_back_one_of_a_group(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(settlement.Settlement, "_give_back_ordered", settlement.Settlement._give_back_loose)


def _counts_attempts_of_those_behind(patch: pytest.MonkeyPatch) -> None:
    real = Lease.acked
    patch.setattr(Lease, "acked", lambda lease, bits: replace(real(lease, bits), attempt=lease.attempt))


def _never_gives_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RetryPolicy, "exhausted", lambda *_: False)


def _checks_once_more(patch: pytest.MonkeyPatch) -> None:
    real = CheckPolicy.limit_for
    patch.setattr(CheckPolicy, "limit_for", lambda policy, own: real(policy, own) + 1)


def _keeps_the_token(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leases, "new_token", lambda _: 7)


def _without_deleting_leases(patch: pytest.MonkeyPatch, module: object, name: str) -> None:
    real = getattr(module, name)

    class Session:
        def __init__(self, session: object) -> None:
            self._session = session

        def __getattr__(self, name: str) -> object:
            return getattr(self._session, name)

        def run(self, sql: str, *rest: object) -> object:
            return 0 if sql.startswith("DELETE FROM lease") else self._session.run(sql, *rest)  # type: ignore[attr-defined]

    patch.setattr(module, name, lambda session, *rest, **named: real(Session(session), *rest, **named))


def _keeps_leases_of_the_place_before(patch: pytest.MonkeyPatch) -> None:
    _without_deleting_leases(patch, progress, "seek")


def _keeps_leases_of_a_deleted_group(patch: pytest.MonkeyPatch) -> None:
    _without_deleting_leases(patch, groups, "_delete")


def _serves_a_paused_group(patch: pytest.MonkeyPatch) -> None:
    real = group_views.from_row
    patch.setattr(group_views, "from_row", lambda row: replace(real(row), paused_at=None))


def _redrives_as_a_further_attempt(patch: pytest.MonkeyPatch) -> None:
    real = redrive.Lease
    patch.setattr(redrive, "Lease", lambda *rest, **named: replace(real(*rest, **named), attempt=1))


def _gives_up_what_is_tried_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RetryPolicy, "exhausted", lambda policy, attempt: attempt >= policy.max_attempts)


def _mixes_up_retry_delays(patch: pytest.MonkeyPatch) -> None:
    def first(policy: RetryPolicy, attempt: int, requested: int | None = None) -> int:
        return policy.delays[0] if requested is None else requested

    patch.setattr(RetryPolicy, "delay_after", first)


BUGS: list[Callable[[pytest.MonkeyPatch], None]] = [
    _never_refuses,
    _skips_an_offset,
    _commits_after_rollback,
    _releases_what_was_rolled_back,
    _takes_leases_too_early,
    _forgets_acks,
    _never_gives_up,
    _checks_once_more,
    _keeps_the_token,
    _gives_a_group_to_two,
    _forgets_whose_turn_it_is,
    _gives_back_one_of_a_group,
    _counts_attempts_of_those_behind,
    _keeps_leases_of_the_place_before,
    _keeps_leases_of_a_deleted_group,
    _serves_a_paused_group,
    _redrives_as_a_further_attempt,
    _gives_up_what_is_tried_for_ever,
    _mixes_up_retry_delays,
]


@pytest.mark.parametrize("kind", ["sqlite"])
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__.strip("_").replace("_", "-"))
def test_the_model_finds_a_seeded_bug(
    rig: Rig, bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    # Flaky is what hypothesis makes of an assertion that fails in the teardown of an example it had given up.
    with pytest.raises((AssertionError, Flaky)):
        run_state_machine_as_test(
            on(rig),
            settings=settings(
                max_examples=2000, stateful_step_count=100, phases=[Phase.generate], derandomize=True, **COMMON
            ),
        )


@pytest.mark.parametrize("kind", ["sqlite"])
def test_an_item_that_the_database_refuses_is_not_taken_for_a_fault_of_a_rule(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "_judge", lambda: None)
    with pytest.raises(ItemRejected, match="TypeError"):
        run_state_machine_as_test(
            on(rig), settings=settings(max_examples=100, phases=[Phase.generate], derandomize=True, **COMMON)
        )
