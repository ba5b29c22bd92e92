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
from hypothesis.stateful import run_state_machine_as_test

from broker.domain.check_policy import CheckPolicy
from broker.domain.retry import RetryPolicy
from broker.domain.transaction import TransactionState
from broker.services.ports import ClaimWork, TransactionOutcome, VerdictWork
from broker.storage import leases, verdicts
from conformance.model import Model
from conformance.rig import Rig
from conformance.world import LEASE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conformance.world import AnyKind, Databases

FULL = os.environ.get("HYPOTHESIS_PROFILE") == "full"
EXAMPLES = {"sqlite": 10_000 if FULL else 150, "mariadb": 500 if FULL else 15, "mysql": 500 if FULL else 15}
COMMON = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck), "report_multiple_bugs": False}

pytestmark = pytest.mark.timeout(0 if FULL else 300)


@pytest.fixture
def rig(kind: AnyKind, databases: Databases) -> Iterator[Rig]:
    """Two stores on a database; SQLite's file lies in memory where there is such a place, for speed."""
    url = databases.empty(kind)
    folder = None
    if kind == "sqlite" and Path("/dev/shm").is_dir():
        folder = tempfile.mkdtemp(dir="/dev/shm")
        shutil.copy(url.removeprefix("sqlite:///"), f"{folder}/model.db")
        url = f"sqlite:///{folder}/model.db"
    made = Rig(url)
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
    real = leases._refusal
    patch.setattr(leases, "_refusal", lambda lease, receipt: real(lease, receipt) if lease is None else None)


def _skips_an_offset(patch: pytest.MonkeyPatch) -> None:
    real = verdicts.take_offsets
    patch.setattr(verdicts, "take_offsets", lambda *rest: {q: n + 1 for q, n in real(*rest).items()})


def _commits_after_rollback(patch: pytest.MonkeyPatch) -> None:
    real = verdicts._judge

    def judge(item: VerdictWork, pending: object, recorded: TransactionOutcome | None) -> object:
        if item.commit and recorded and recorded.state is TransactionState.ROLLED_BACK:
            return TransactionOutcome(item.transaction_id, TransactionState.COMMITTED)
        return real(item, pending, recorded)  # type: ignore[arg-type]

    patch.setattr(verdicts, "_judge", judge)


def _releases_what_was_rolled_back(patch: pytest.MonkeyPatch) -> None:
    real = verdicts._apply

    def apply(session: object, decided: dict[bytes, VerdictWork], *rest: object) -> bool:
        return real(session, {i: replace(item, commit=True) for i, item in decided.items()}, *rest)  # type: ignore[arg-type]

    patch.setattr(verdicts, "_apply", apply)


def _takes_leases_too_early(patch: pytest.MonkeyPatch) -> None:
    real = leases._take_over

    def take_over(session: object, item: ClaimWork, *rest: object) -> None:
        ids, places, room, claimed, now, directory = rest
        real(session, item, ids, places, room, claimed, now + LEASE, directory)  # type: ignore[arg-type, operator]
        # Deliveries with the lease time they should have: only the double delivery is wrong.
        claimed.parts[:] = [replace(each, expires_at=now + LEASE) for each in claimed.parts]  # type: ignore[attr-defined, operator]

    patch.setattr(leases, "_take_over", take_over)
    patch.setattr(leases, "DUE_LEASES", leases.DUE_LEASES.replace("available_at <= ?", f"available_at <= ? + {LEASE}"))


def _forgets_acks(patch: pytest.MonkeyPatch) -> None:
    real = leases._storing
    patch.setattr(leases, "_storing", lambda lease: real(replace(lease, settled=lease.moved)))


def _never_gives_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RetryPolicy, "exhausted", lambda *_: False)


def _checks_once_more(patch: pytest.MonkeyPatch) -> None:
    real = CheckPolicy.limit_for
    patch.setattr(CheckPolicy, "limit_for", lambda policy, own: real(policy, own) + 1)


def _keeps_the_token(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leases, "new_token", lambda: 7)


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
]


@pytest.mark.parametrize("kind", ["sqlite"])
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__.strip("_").replace("_", "-"))
def test_the_model_finds_a_seeded_bug(
    rig: Rig, bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            on(rig),
            settings=settings(
                max_examples=2000, stateful_step_count=50, phases=[Phase.generate], derandomize=True, **COMMON
            ),
        )
