"""Work costs in proportion to what is pending or delivered, never to the past: a million decided transactions.

For every piece of work two proofs: the server's own counters of rows read while the real function runs, and the
plans of all statements it ran. HALFMQ_PLAN_ROWS makes the past shorter on a slow machine.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from broker.domain.tenancy import Quota
from broker.domain.transaction import TransactionState, VerdictSource
from broker.ports.delivery import Claimed, ClaimWork
from broker.ports.diagnosis import Bounds, DiagnosisSettings
from broker.ports.transactions import DecidedSearch, TransactionFilter
from broker.storage.catalog import quotas
from broker.storage.delivery import claims
from broker.storage.delivery.group_views import GroupMemory
from broker.storage.diagnosis.examination import CHECKS
from broker.storage.diagnosis.subject import Subject
from broker.storage.groups import groups, holders, lags, progress
from broker.storage.log import reading
from broker.storage.retention import topic_deletion
from broker.storage.retention import trimming as retention
from broker.storage.sampling import overview, totals
from broker.storage.sampling.lags import Lags
from broker.storage.sampling.pending import pending_of_groups
from broker.storage.tables.rows import LAST_CHECK_SENT
from broker.storage.transactions import checks, decided, groups_with, halves, transaction_queries
from conformance import bulk
from conformance.bulk import (
    DUE_LEASES,
    DUE_OF_GROUP,
    GROUP,
    PENDING,
    TOPIC,
    Measured,
    Past,
)
from conformance.planned_work import CONSTANT, LOCKED, WORK, directory
from conformance.world import START
from support.databases import Kind, create_database, drop_database, server_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.ports.sampling import Lag
    from broker.storage.engine.session import Session


BIG = {
    "op_record": "op_record",
    "o": "op_record",
    "message": "message",
    "m": "message",
    "message_key": "message_key",
    "e": "message_key",
    "dedup_key": "dedup_key",
}
SMALL = {"half_message": "half_message", "h": "half_message", "t": "half_message", "lease": "lease", "l": "lease"}
SMALL |= {"scheduled_message": "scheduled_message", "s": "scheduled_message"}
LOCKING = re.compile(r"^(UPDATE|DELETE)|FOR UPDATE")
GOOD = {"const", "eq_ref", "ref", "range", "system", "ref_or_null", "unique_subquery", "index_subquery", None}


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def past(request: pytest.FixtureRequest) -> Iterator[Past]:
    """One database with a long past for each server."""
    kind: Kind = request.param
    url = create_database(server_url(kind))
    bulk.build(url)
    made = Past(url)
    yield made
    made.close()
    drop_database(url)


def plans_hold(past: Past, measured: Measured, *, may_scan: frozenset[str] = frozenset()) -> None:
    """Every statement reaches its tables by a key."""
    for sql, values in measured.statements:
        if not re.match(r"\s*(SELECT|UPDATE|DELETE|INSERT INTO \w+ \([^)]*\)\s+SELECT)", sql):
            continue
        for step in past.plan(sql, values):
            table = BIG.get(step["table"]) or SMALL.get(step["table"])
            if table is None or table in may_scan or step["select_type"] == "INSERT":
                continue
            assert step["type"] in GOOD, f"{table} is read by {step['type']}: {step}\n{sql[:500]}"
            assert step["key"] or step["type"] is None, f"{table} without a key: {step}\n{sql[:500]}"


@pytest.mark.parametrize("name", WORK)
def test_rows_read_follow_what_is_returned(past: Past, name: str) -> None:
    past.pretend(stale=False)
    work, expected, factor = WORK[name]
    measured = past.reads(work)
    if name.startswith("sweep"):
        assert measured.result == (0, bulk.pending_id(PENDING - 1))
    else:
        assert len(measured.result) == expected
    assert measured.reads <= factor * expected + CONSTANT, f"{measured.reads} rows read for {expected}"
    plans_hold(past, measured)


@pytest.mark.parametrize("name", WORK)
def test_nothing_but_its_own_rows_is_locked(past: Past, name: str) -> None:
    """Even when the server takes the table for empty, as it does for seconds after a burst of messages began.

    A statement that locks and scans would wait for the rows of every other broker. Not many more are read, either.
    """
    past.pretend(stale=True)
    work, expected, factor = WORK[name]
    measured = past.reads(work, locks=True)
    assert measured.reads <= 2 * (factor * expected + CONSTANT), f"{measured.reads} rows read for {expected}"
    assert measured.locked is not None
    assert measured.locked <= expected * LOCKED.get(name, 1) + bulk.QUEUES, (
        f"{measured.locked} rows locked for {expected}"
    )
    measured.statements = [each for each in measured.statements if LOCKING.search(each[0])]
    plans_hold(past, measured)


SCANS = {
    "news of groups": (
        lambda session: [
            i
            for i, news in claims.news_of(session, {n: [1, 2, 3, 4] for n in (1, 2, 3, 4)}, START, directory()).items()
            if news.due
        ],
        [1],
        8,
    ),
    "overdue producer groups": (
        lambda session: sorted(name for name, _ in checks.overdue(session, START, 5)),
        ["shop0", "shop1", "shop2", "shop3"],
        bulk.PENDING_GROUPS,
    ),
    "queue end_offsets": (
        lambda session: sorted(reading.end_offsets(session, [TOPIC.topic_id]).values()),
        [bulk.PER_QUEUE] * bulk.QUEUES,
        bulk.QUEUES,
    ),
    "producer groups behind their last check": (
        lambda session: sorted(groups_with.first_due_of_groups(session, LAST_CHECK_SENT)),
        [n + 1 for n in range(bulk.PENDING_GROUPS)],
        bulk.PENDING_GROUPS,
    ),
    "what has expired": (
        lambda session: sorted(retention.to_trim(session, 0, 10, 2 * START, directory()).queues),
        [n + 1 for n in range(bulk.QUEUES)],
        bulk.QUEUES,
    ),
    "what has expired of nothing": (
        lambda session: sorted(retention.to_trim(session, TOPIC.topic_id, 10, START, directory()).queues),
        [],
        1,
    ),
    "dead letter topics without a group": (
        lambda session: topic_deletion.orphaned_dead_letters(session, START, 10),
        [],
        1,
    ),
    "progress in a queue": (lambda session: progress.progress_in(session, [1]), [(n + 1, 1) for n in range(4)], 4),
}


@pytest.mark.parametrize("name", SCANS)
def test_polls_read_a_few_rows_a_group(past: Past, name: str) -> None:
    """These run every second on every broker; they must not read all pending rows."""
    past.pretend(stale=False)
    work, expected, groups = SCANS[name]
    measured = past.reads(work)
    assert measured.result == expected
    assert measured.reads <= 6 * groups + 10
    plans_hold(past, measured)


@pytest.mark.parametrize("stale", [False, True])
def test_what_a_tenant_uses_is_found_by_its_names(past: Past, stale: bool) -> None:
    past.pretend(stale=stale)

    def work(session: Session) -> Any:
        session.run("UPDATE producer_group SET name = 'acme%shop' WHERE producer_group_id = 1")
        session.run("UPDATE topic SET name = 'acme%orders' WHERE topic_id = 1")
        before = len(session.statements)  # type: ignore[attr-defined]
        used = quotas.usage(session, Quota("acme", retained_bytes=1, pending_transactions=1), "acme")
        del session.statements[:before]  # type: ignore[attr-defined]
        return used

    measured = past.reads(work)
    assert measured.result.pending_transactions > 0
    assert measured.result.retained_bytes > 0
    plans_hold(past, measured)


def lags_of(session: Session) -> list[Lag]:
    found = Lags(START)
    assert found.add_progress(session, (0, 0)) is None
    assert found.add_leases(session, 0) is None
    return sorted(found.finish(session), key=lambda lag: lag.consumer_group)


IN_FLIGHT = bulk.LEASES - DUE_LEASES
# Of what samples look at: (work, what it finds, rows that may be read)
SAMPLES = {
    "totals": (lambda session: totals.totals(session).scheduled, bulk.SCHEDULED, 3 * bulk.SCHEDULED),
    "dead letters": (lambda session: len(totals.dead_letters(session)), 0, CONSTANT),
    "pending": (
        lambda session: sum(each.pending + each.parked for each in pending_of_groups(session, START)),
        PENDING,
        # Each entry of the index twice at most, where the server does not skip from group to group.
        3 * PENDING,
    ),
    "lags": (
        lambda session: sum(lag.in_flight for lag in lags_of(session)),
        IN_FLIGHT,
        # Leases, progress with its queues, and the first messages of each.
        bulk.LEASES + 8 * 4 * bulk.QUEUES,
    ),
}


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_for_metrics_reads_what_is_open_and_nothing_of_the_past(past: Past, name: str, stale: bool) -> None:
    past.pretend(stale=stale)
    work, expected, most = SAMPLES[name]
    measured = past.reads(work)
    assert measured.result == expected
    assert measured.reads <= most + CONSTANT
    # They are counted up to a bound, and read in the order of the key up to a bound.
    plans_hold(past, measured, may_scan=frozenset({"totals": {"scheduled_message"}, "lags": {"lease"}}.get(name, ())))


DIAGNOSES = [
    "clock",
    "tables",
    "plans",
    "stuck-checks",
    "producers",
    "retention",
    "deletions",
    "scheduled",
    "restores",
    "moves",
]


@pytest.mark.parametrize("check", DIAGNOSES)
def test_a_diagnosis_reads_what_it_counts_and_not_the_past(past: Past, check: str) -> None:
    """It is harmless on a server at work: it counts what is pending up to a thousand, and locks nothing."""
    past.pretend(stale=False)
    work = next(each.work for each in CHECKS if each.name == check)
    # Everything is late in the eyes of such brokers.
    nothing = Bounds(0, 0)
    settings = DiagnosisSettings(keep_ops=0, behind=nothing, late=nothing, intervals=nothing)
    measured = past.reads(lambda session: work(Subject(session, past.database, settings)), locks=True)
    assert measured.result
    # A thousand op records, and for each of them that it is not scheduled; columns of all tables.
    assert measured.reads <= 8000, f"{measured.reads} rows read"
    assert measured.locked == 0
    measured.statements = [each for each in measured.statements if "information_schema" not in each[0]]
    # Its first two leases are read in the order of their key.
    plans_hold(past, measured, may_scan=frozenset({"lease"} if check == "plans" else ()))


def test_a_pull_that_finds_nothing_reads_next_to_nothing(past: Past) -> None:
    past.pretend(stale=False)

    def work(session: Session) -> Any:
        session.run("UPDATE group_progress SET next_offset = ? WHERE group_id = 1", (bulk.PER_QUEUE,))
        before = len(session.statements)  # type: ignore[attr-defined]
        wish = ClaimWork(GROUP, [TOPIC], "me", 100, 1 << 20, 1000)
        result = claims.claim(session, [wish], START - 100, directory(), GroupMemory(), 0)
        del session.statements[:before]  # type: ignore[attr-defined]
        return result

    measured = past.reads(work)
    assert measured.result == [Claimed([])]
    assert measured.reads <= CONSTANT


def test_decided_halves_are_found_among_a_million(past: Past) -> None:
    """Three repetitions of Prepare came after their verdicts."""

    past.pretend(stale=False)

    def work(session: Session) -> Any:
        rows = [(bulk.decided_id(n * 1000 + 7), 0, 1, 1, b"z", 1, START, 1, START, 0) for n in range(3)]
        session.insert(
            "half_message",
            "transaction_id, position, producer_group_id, topic_id, body, size, born_at, check_state, check_due_at,"
            " check_count",
            rows,
        )
        due = session.execute_all([checks.looking_for_due(session, 1, START, 1000)])[0].rows
        return len(due), halves.sweep_decided(session, b"", 2000)

    measured = past.reads(work)
    assert measured.result == (DUE_OF_GROUP, (3, b""))
    assert measured.reads <= 5 * PENDING
    plans_hold(past, measured)


@pytest.mark.parametrize(
    "wanted",
    [
        TransactionFilter(),
        TransactionFilter(state=TransactionState.PARKED),
        TransactionFilter(producer_group="shop1"),
        TransactionFilter(topic_id=1, limit=10),
        TransactionFilter(prepared_before=START, after=bulk.pending_id(500)),
        TransactionFilter(producer_group="shop1", state=TransactionState.PREPARED, after=bulk.pending_id(500)),
    ],
)
def test_listing_reads_a_page(past: Past, wanted: TransactionFilter) -> None:
    past.pretend(stale=False)
    measured = past.reads(lambda session: transaction_queries.list_transactions(session, wanted))
    assert 0 < len(measured.result.entries) <= wanted.limit
    # A page, its details and their counts; of a group, the index entries of its transactions; with conditions on topic
    # or time, those of the first transactions.
    of_group = 0 if wanted.producer_group is None else PENDING // bulk.PENDING_GROUPS
    examined = 0 if wanted.topic_id is None and wanted.prepared_before is None else transaction_queries.FIRST_EXAMINED
    assert measured.reads <= 6 * wanted.limit + 5 * examined + 2 * of_group + CONSTANT
    plans_hold(past, measured)


@pytest.mark.parametrize(
    "search",
    [
        DecidedSearch(sources=frozenset([VerdictSource.PRODUCER])),
        DecidedSearch(sources=frozenset([VerdictSource.PRODUCER]), producer_group="nobody"),
        DecidedSearch(sources=frozenset([VerdictSource.OPERATOR])),
        DecidedSearch(sources=frozenset([VerdictSource.PRODUCER]), state=TransactionState.ROLLED_BACK),
        DecidedSearch(sources=frozenset([VerdictSource.PRODUCER]), since=START - 500, until=START - 100),
        DecidedSearch(sources=frozenset([VerdictSource.OPERATOR]), after=(START - 1000, bulk.decided_id(500))),
    ],
)
def test_listing_what_was_decided_reads_a_limited_part(past: Past, search: DecidedSearch) -> None:
    past.pretend(stale=False)
    measured = past.reads(lambda session: decided.list_decided(session, search))
    assert len(measured.result.entries) <= search.limit
    # Index entries, the rows behind them, and a page with its groups; no more where few match.
    assert measured.reads <= 2 * decided.MOST_READ + 6 * search.limit + CONSTANT
    plans_hold(past, measured)


def test_an_overview_reads_index_entries_of_what_is_pending(past: Past) -> None:
    past.pretend(stale=False)
    measured = past.reads(lambda session: overview.overview(session, START, "", ""))
    assert sum(each.pending + each.parked for each in measured.result.pending) > 0
    # The entries of half_due for their numbers and for their ages; scheduled messages; the groups' oldest.
    assert measured.reads <= 6 * PENDING + 3 * bulk.SCHEDULED + 20 * CONSTANT
    plans_hold(past, measured, may_scan=frozenset({"scheduled_message"}))


def test_the_lag_of_groups_reads_their_own_rows(past: Past) -> None:
    past.pretend(stale=False)
    known = past.reads(lambda session: groups.list_groups(session, "", 100)).result
    measured = past.reads(lambda session: lags.group_lags(session, known, None))
    found, count = measured.result
    assert count == 4
    assert sum(each.lag for each in found) > 0
    # A row of progress and of its queue for each, their leases, and the first message that waits.
    assert measured.reads <= 3 * bulk.LEASES + 10 * len(found) * len(TOPIC.queue_ids) + CONSTANT
    plans_hold(past, measured)


def test_what_consumers_hold_reads_the_leases_of_their_groups(past: Past) -> None:
    past.pretend(stale=False)
    measured = past.reads(lambda session: holders.held_by(session, {("g0", "me"), ("g1", "me")}))
    assert measured.reads <= 3 * bulk.LEASES + CONSTANT
    plans_hold(past, measured)


def test_looking_at_one_transaction(past: Past) -> None:
    past.pretend(stale=False)
    for transaction_id in (bulk.pending_id(7), bulk.decided_id(12345)):
        measured = past.reads(
            lambda session, i=transaction_id: transaction_queries.transaction(session, i, directory())
        )
        assert measured.result is not None
        assert measured.reads <= CONSTANT
        plans_hold(past, measured)
