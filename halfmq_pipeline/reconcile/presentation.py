"""The report of a reconciliation."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from consumer_sdk.reconciliation import KINDS, WRONG
from halfmq_pipeline.reports.plots import log_histogram, stacked_bars
from halfmq_pipeline.reports.report import Headline, Report
from halfmq_pipeline.reports.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from halfmq_pipeline.archive.folder import Folder
    from halfmq_pipeline.reconcile.results import Reconciled
    from halfmq_pipeline.reconcile.settings import ReconcileSettings

__all__ = ["write_report"]

_WORDS = {
    "row_without_message": "Rows without a message",
    "message_without_row": "Messages without a row",
    "mismatch": "Rows and messages that differ",
    "duplicate": "Keys with several messages",
    "in_doubt": "Rows in doubt",
}
_LEAST_BARS, _BARS = 20, 60
_MINUTE = timedelta(minutes=1)
_FINDINGS_SHOWN = 200


def write_report(
    job: ReconcileSettings, result: Reconciled, kinds: Mapping[tuple[str, datetime], int], folder: Folder, now: datetime
) -> None:
    """Writes report.html into the output folder, replacing the last one."""
    window = result.window
    report = Report(
        f"{job.table if len(job.table) < 50 else 'Rows'} and {job.topic}",
        lead=f"Rows and messages of {_span(window.start, window.end)}, each held against the other side.",
        facts=job.facts() | {"Judged": _span(window.start, window.end), "Made at": now},
        headlines=[
            Headline("rows", result.rows),
            Headline("messages", result.messages),
            *(
                Headline(_WORDS[kind].lower(), count, "bad" if count and kind in WRONG else "plain")
                for kind, count in result.found.items()
            ),
            *([Headline("repaired", result.repaired, "good")] if job.repair else []),
        ],
    )
    found = report.section("Findings")
    for note in window.notes:
        found.text(note)
    found.table(["kind", "number"], [(_WORDS[kind], count) for kind, count in result.found.items()])
    if kinds:
        # The minute of a finding may begin before the window does.
        times = [min(max(minute, window.start), window.end) for _, minute in kinds]
        steps = Steps.around(times, window.start, window.end, least=_LEAST_BARS, most=_BARS, finest=_MINUTE)
        series = _over_time(kinds, steps)
        found.figure(
            stacked_bars(steps.starts(), steps.width, series, label="findings"),
            "Findings by the time of the row or message",
        )
        found.table(*_first(folder, result), caption=f"The first {_FINDINGS_SHOWN}; all of them: {result.findings}")
    lag = report.section("From row to message", "How long after its row a message became visible to consumers.")
    if result.lags:
        low, high = min(result.lags), max(result.lags)
        edges = [10 ** (bar / 4) for bar in range(low, high + 2)]
        counts = [result.lags.get(bar, 0) for bar in range(low, high + 1)]
        lag.figure(log_histogram(edges, counts, label="rows"), "Time from a row to its message")
    else:
        lag.text("No row has a message.")
    folder.note("report.html", report.html().encode())


def _span(start: datetime, end: datetime) -> str:
    return f"{start:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} UTC"


def _over_time(kinds: Mapping[tuple[str, datetime], int], steps: Steps) -> dict[str, list[float]]:
    bars: Counter[tuple[str, int]] = Counter()
    for (kind, minute), count in kinds.items():
        bars[kind, min(max(steps.number(minute), steps.first), steps.last)] += count
    there = [kind for kind in KINDS if any(kind == each for each, _ in bars)]
    return {_WORDS[kind]: [bars[kind, number] for number in range(steps.first, steps.last + 1)] for kind in there}


def _first(folder: Folder, result: Reconciled) -> tuple[list[str], list[list[object]]]:
    names = ["kind", "key", "at", "queue", "offset", "details"]
    with folder.open(f"findings/{result.findings.rpartition('/')[2]}") as source:
        batch = next(pq.ParquetFile(source).iter_batches(_FINDINGS_SHOWN, columns=names))
    return names, [list(row.values()) for row in batch.select(names).to_pylist()]
