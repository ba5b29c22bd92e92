"""Whether an alert fires, by Prometheus's own evaluation of what a real broker told.

Two texts of metrics, from before a cause was made and after it, become the series of half an hour: gauges stay what
they are after it, and what a counter grew by in between, it grows by each minute.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from support.metrics import promtool, text_at

if TYPE_CHECKING:
    from collections.abc import Iterator

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "halfmq-alerts.yml"
MINUTES = 30
_NAMES = re.compile(r"\b(?:halfmq|rocketmq)_\w+")


@dataclass(frozen=True)
class Scrape:
    """Metrics at a time."""

    text: str = ""
    at: float = field(default_factory=time.time)

    @classmethod
    def of(cls, endpoint: str) -> Scrape:
        return cls(text_at(endpoint))

    def values(self) -> dict[str, tuple[float, bool]]:
        """Values by series, and whether they are those of counters; times count from the scrape on."""
        found = {}
        for family in text_string_to_metric_families(self.text):
            counts = family.type in {"counter", "histogram"}
            for each in family.samples:
                labels = ",".join(f"{name}={json.dumps(text)}" for name, text in sorted(each.labels.items()))
                value = each.value - self.at if each.name.endswith("_timestamp_seconds") else each.value
                found[f'{each.name}{{{labels}{"," if labels else ""}instance="b:9464"}}'] = value, counts
        return found


def _series(before: Scrape, after: Scrape) -> Iterator[dict[str, str]]:
    used = set(_NAMES.findall(RULES.read_text()))
    first, then = before.values(), after.values()
    for name in sorted(first.keys() | then.keys()):
        if name.partition("{")[0] not in used:
            continue
        start = f"{first[name][0]!r}" if name in first else "_"
        if name not in then:
            yield {"series": name, "values": start}
            continue
        value, counts = then[name]
        growth = value - first.get(name, (0.0, True))[0] if counts else 0.0
        yield {"series": name, "values": f"{start} {value!r}+{growth!r}x{MINUTES}"}


def _judged(folder: Path, alert: str, before: Scrape, after: Scrape, labels: dict[str, str], expected: int) -> None:
    wanted = ",".join(
        f"{name}={json.dumps(text)}" for name, text in {"alertname": alert, "alertstate": "firing", **labels}.items()
    )
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "1m",
                "input_series": list(_series(before, after)),
                "promql_expr_test": [
                    {
                        "expr": f"count(ALERTS{{{wanted}}}) or vector(0)",
                        "eval_time": f"{MINUTES - 1}m",
                        "exp_samples": [{"labels": "{}", "value": expected}],
                    }
                ],
            }
        ],
    }
    file = folder / "test.json"
    # JSON is YAML.
    file.write_text(json.dumps(test))
    promtool("test", "rules", str(file))


def fires(folder: Path, alert: str, before: Scrape, after: Scrape, **labels: str) -> None:
    """Asserts that an alert with these labels fires after, once, and that none of its name does before."""
    _judged(folder, alert, before, before, {}, 0)
    _judged(folder, alert, before, after, labels, 1)
