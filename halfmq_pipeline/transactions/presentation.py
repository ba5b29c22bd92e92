"""The results as a report."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from halfmq_pipeline.reports.durations import duration_text
from halfmq_pipeline.reports.plots import group_bars, lines, log_histogram, stacked_bars
from halfmq_pipeline.reports.report import Headline, Report, Share, value_text
from halfmq_pipeline.transactions.history import SOURCES
from halfmq_pipeline.transactions.measures import PERCENTILES
from halfmq_pipeline.transactions.window import microseconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from halfmq_pipeline.reports.steps import Steps
    from halfmq_pipeline.transactions.results import Results
    from halfmq_pipeline.transactions.window import Window

__all__ = ["present"]

_PERCENTILES = {name: name.removesuffix("_us") for name in PERCENTILES}
_MOST_GROUPS, _MOST_STUCK, _MOST_ACTIONS = 20, 25, 50


def present(
    results: Results, window: Window, steps: Steps, as_of: datetime, stuck_after: timedelta, database: str
) -> Report:
    """Makes the report."""
    report = Report(
        "Transactions",
        "How half messages became messages, or did not: how long it took, who decided, what was asked, what is stuck.",
        facts=_facts(results, window, steps, as_of, stuck_after, database),
        headlines=_headlines(results),
    )
    _verdicts(report, results, steps)
    _times(report, results, steps)
    _checks(report, results, steps)
    _groups(report, results)
    _stuck(report, results, stuck_after)
    _actions(report, results)
    return report


def _facts(
    results: Results, window: Window, steps: Steps, as_of: datetime, stuck_after: timedelta, database: str
) -> dict[str, object]:
    transactions, messages = results.of_sinks
    kept = (
        "The broker keeps op records for its setting retention_hours (72 unless set); older verdicts are in no figure."
    )
    if results.oldest is None:
        kept += " There are none now."
    else:
        kept += f" The oldest one that is there now is of {results.oldest:%Y-%m-%d %H:%M:%S}."
        if results.oldest > window.start:
            kept += " This window begins before it."
    return {
        "Database": database,
        "Verdicts": f"{value_text(window.start)} to {value_text(window.end)} (UTC), in steps of"
        f" {duration_text(microseconds(steps.width))}{_shown(window, steps)}",
        "Pending": f"as of {as_of:%Y-%m-%d %H:%M:%S} (UTC); stuck means parked, or without verdict for longer than"
        f" {duration_text(microseconds(stuck_after))}",
        "Left out": f"messages that were sent without a transaction, and {transactions:,} transactions"
        f" ({messages:,} messages) of sinks, about which no producer is asked",
        "History": kept,
    }


def _shown(window: Window, steps: Steps) -> str:
    first, last = steps.starts()[0], steps.starts()[-1] + steps.width
    if first <= window.start and window.end <= last:
        return ""
    return f"; plots show the time in which there are any: {value_text(first)} to {value_text(last)}"


def _headlines(results: Results) -> list[Headline]:
    total = results.total
    pending, stuck = (sum(row[name] for row in results.by_group) for name in ("pending", "stuck"))
    return [
        Headline("transactions decided", total["transactions"]),
        Headline("median time to verdict", _duration(total["p50_us"])),
        Headline("99 % decided within", _duration(total["p99_us"])),
        Headline("rolled back", _share(total["rolled_back_share"])),
        Headline("needed a check", _share(total["checked_share"])),
        Headline("of answers to checks were UNKNOWN", _share(total["unknown_share"])),
        Headline("pending now", pending),
        Headline("of them stuck", stuck, "bad" if stuck else "good"),
    ]


def _verdicts(report: Report, results: Results, steps: Steps) -> None:
    section = report.section("Verdicts", "A transaction counts in the step in which it got its verdict.")
    rows = results.by_bucket
    times = _column(rows, "bucket")
    section.figure(
        stacked_bars(
            times,
            steps.width,
            {"committed": _column(rows, "committed"), "rolled back": _column(rows, "rolled_back")},
            label="transactions",
        ),
        "Transactions by verdict",
    )
    section.figure(
        lines(
            times,
            {"rolled back": _column(rows, "rolled_back_share")},
            label="rolled back",
            unit="share",
            width=steps.width,
        ),
        "Share of transactions that were rolled back",
    )
    section.figure(
        stacked_bars(times, steps.width, {name: _column(rows, f"by_{name}") for name in SOURCES}, label="transactions"),
        "Transactions by who decided: the producer itself, its answer to a check, or an operator",
    )
    total = results.total
    section.table(
        ["decided by", "transactions", "share"],
        [(name, total[f"by_{name}"], _part(total[f"by_{name}"], total["transactions"])) for name in SOURCES],
    )


def _times(report: Report, results: Results, steps: Steps) -> None:
    section = report.section("Time from prepare to verdict")
    total, bars = results.total, results.histogram
    if bars:
        edges = [bars[0]["from_us"], *(bar["to_us"] for bar in bars)]
        marks = {shown: total[name] for name, shown in _PERCENTILES.items()}
        section.figure(
            log_histogram(
                edges, _column(bars, "transactions"), label="transactions", marks={**marks, "max": total["max_us"]}
            ),
            "How long transactions took; the scale of time is logarithmic",
        )
    section.figure(
        lines(
            _column(results.by_bucket, "bucket"),
            {shown: _column(results.by_bucket, name) for name, shown in _PERCENTILES.items()},
            label="time to verdict",
            unit="duration",
            width=steps.width,
        ),
        "Half, nine tenths and 99 of 100 transactions were decided within this time",
    )
    section.table(
        ["producer group", *_PERCENTILES.values(), "max"],
        [
            (name, *(_duration(row[column]) for column in (*PERCENTILES, "max_us")))
            for name, row in [("all", total), *_busiest(results)]
        ],
    )


def _checks(report: Report, results: Results, steps: Steps) -> None:
    section = report.section(
        "Checks",
        "When a verdict does not come, the broker asks the producer. UNKNOWN answers say: ask again later. Checks are"
        " those of the transactions decided in the step. A check stays unanswered when the producer is gone or slow, or"
        " when its own verdict comes first.",
    )
    rows = results.by_bucket
    section.figure(
        lines(
            _column(rows, "bucket"),
            {"needed a check": _column(rows, "checked_share"), "answered UNKNOWN": _column(rows, "unknown_share")},
            label="share",
            unit="share",
            width=steps.width,
        ),
        "Share of transactions that needed a check, and share of answers that were UNKNOWN",
    )
    section.table(
        [
            "producer group",
            "transactions",
            "checked",
            "share",
            "checks",
            "per transaction",
            "unanswered",
            "UNKNOWN",
            "of answers",
        ],
        [
            (
                name,
                row["transactions"],
                row["checked"],
                _share(row["checked_share"]),
                row["checks"],
                row["checks_per_transaction"],
                row["checks_unanswered"],
                row["checks_unknown"],
                _share(row["unknown_share"]),
            )
            for name, row in [("all", results.total), *_busiest(results)]
        ],
    )


def _groups(report: Report, results: Results) -> None:
    section = report.section("Producer groups")
    shown = _busiest(results)
    if len(results.by_group) > len(shown):
        section.text(f"The {len(shown)} busiest of {len(results.by_group)}; by_group.parquet has all.")
    names, rows = [name for name, _ in shown], [row for _, row in shown]
    section.figure(
        group_bars(names, {source: _column(rows, f"by_{source}") for source in SOURCES}, label="transactions decided"),
        "Transactions by producer group, and who decided",
    )
    section.table(
        [
            "producer group",
            "transactions",
            "messages",
            "committed",
            "rolled back",
            "share",
            "pending",
            "parked",
            "stuck",
        ],
        [
            (
                name,
                row["transactions"],
                row["messages"],
                row["committed"],
                row["rolled_back"],
                _share(row["rolled_back_share"]),
                row["pending"],
                row["parked"],
                row["stuck"],
            )
            for name, row in shown
        ],
    )


def _stuck(report: Report, results: Results, stuck_after: timedelta) -> None:
    section = report.section(
        "Stuck transactions",
        f"Parked, or without a verdict for longer than {duration_text(microseconds(stuck_after))}. Parked ones wait for"
        " an operator: halfmq.v1.AdminService/ResolveTransaction.",
    )
    waiting = sorted(
        (row for row in results.by_group if row["stuck"]), key=lambda row: (-row["stuck"], row["producer_group"])
    )
    if waiting:
        section.figure(
            group_bars(
                _column(waiting[:_MOST_GROUPS], "producer_group"),
                {
                    "parked": _column(waiting[:_MOST_GROUPS], "parked"),
                    "still asked": [row["stuck"] - row["parked"] for row in waiting[:_MOST_GROUPS]],
                },
                label="stuck transactions",
            ),
            "Stuck transactions by producer group",
        )
    section.table(
        ["producer group", "pending", "stuck", "parked", "checks", "oldest"],
        [
            (
                row["producer_group"],
                row["pending"],
                row["stuck"],
                row["parked"],
                row["pending_checks"],
                _duration(row["oldest_age_us"]),
            )
            for row in results.by_group
            if row["pending"]
        ],
        caption="Producer groups with transactions that have no verdict",
    )
    section.table(
        ["transaction", "producer group", "prepared (UTC)", "age", "parked", "checks", "unanswered", "UNKNOWN"],
        [
            (
                row["transaction_id"],
                row["producer_group"],
                row["prepared_at"],
                _duration(row["age_us"]),
                row["parked_at"] or row["parked"],
                row["checks"],
                row["checks_unanswered"],
                row["checks_unknown"],
            )
            for row in results.stuck[:_MOST_STUCK]
        ],
        caption=_caption("The oldest stuck transactions", len(results.stuck), _MOST_STUCK, "stuck.parquet"),
    )


def _actions(report: Report, results: Results) -> None:
    section = report.section("What operators did")
    actions = results.operator_actions[::-1]
    section.table(
        ["time (UTC)", "operator", "action", "transaction", "producer group", "reason"],
        [
            tuple(
                row[name] for name in ("acted_at", "operator", "action", "transaction_id", "producer_group", "reason")
            )
            for row in actions[:_MOST_ACTIONS]
        ],
        caption=_caption("In the window, the last one first", len(actions), _MOST_ACTIONS, "operator_actions.parquet"),
    )


def _busiest(results: Results) -> list[tuple[str, dict[str, Any]]]:
    rows = sorted(results.by_group, key=lambda row: (-row["transactions"], -row["pending"], row["producer_group"]))
    return [(row["producer_group"], row) for row in rows[:_MOST_GROUPS]]


def _caption(what: str, count: int, most: int, file: str) -> str:
    return f"{what}: {most} of {count:,}; all are in {file}" if count > most else what


def _column(rows: Sequence[dict[str, Any]], name: str) -> list[Any]:
    return [row[name] for row in rows]


def _duration(microseconds_: int | None) -> timedelta | None:
    return None if microseconds_ is None else timedelta(microseconds=microseconds_)


def _share(share: float | None) -> Share | None:
    return None if share is None else Share(share)


def _part(part: int, whole: int) -> Share | None:
    return Share(part / whole) if whole else None
