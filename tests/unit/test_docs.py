"""The pages say what the code does: settings, errors, the diagram, links, and no names that are gone."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from broker import errors
from broker.config import BOUNDS, BrokerConfig
from broker.domain import limits
from broker.domain.filters import MAX_FILTER, MAX_TAGS
from broker.domain.filters.tags import MAX_COUNT
from broker.ports.diagnosis import Bounds, DiagnosisSettings
from broker.rocketmq.codes import _BY_FIELD, _BY_KIND, _BY_REASON
from broker.rocketmq.protocol import Code, service_pb2
from broker.services.consuming.config import SECOND, DeliveryConfig
from broker.services.producing.validation import LONGEST_CHECK_DELAY
from broker.storage.tables.schema import metadata
from broker.wire.interceptor import LARGEST_REQUEST
from broker.wire.status import CODES
from halfmq_cli.doctor.certificates import CRITICAL_DAYS, WARNING_DAYS
from halfmq_cli.doctor.command import ALL_CHECKS

CHECKOUT = Path(__file__).parents[2]
DOCS = CHECKOUT / "docs"
_CONFIGURATION = DOCS / "configuration.md"
# Codes that say no more than that a request was wrong, or that there is nothing.
_PLAIN = {"BAD_REQUEST", "NOT_FOUND", "PRECONDITION_FAILED"}
PAGES = sorted([*CHECKOUT.glob("*.md"), *DOCS.rglob("*.md")])


def _table(page: str, heading: str) -> list[list[str]]:
    """The rows of the first table that begins with this heading."""
    lines = page[page.index(f"| {heading} |") :].splitlines()[2:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return rows


def test_every_setting_is_described_with_its_default() -> None:
    rows = _table((DOCS / "configuration.md").read_text(), "setting")
    shown = {row[0].strip("`"): row[1].strip("`") for row in rows}
    special = {
        "broker_id": "host and process number",
        "auto_create_groups": "with `auto_create` or `rocketmq",
        "rocketmq_signature_window": "0`, with `access` `54000",
    }
    expected = {}
    for field in fields(BrokerConfig):
        default = str(field.default)
        if isinstance(field.default, bool):
            default = default.lower()
        elif isinstance(field.default, float):
            default = f"{field.default:g}"
        expected[field.name] = special.get(field.name, default or "none")
    assert list(shown.items()) == list(expected.items())


def test_bounds_of_settings_are_described_as_they_are() -> None:
    shown = {row[0].strip("`"): (float(row[1]), float(row[2])) for row in _table(_CONFIGURATION.read_text(), "number")}
    assert shown == BOUNDS


def test_every_setting_is_an_option_of_serve() -> None:
    text = (CHECKOUT / "halfmq_cli" / "serve.py").read_text()
    for field in fields(BrokerConfig):
        assert f"\n    {field.name}: " in text, field.name


def test_limits_are_described_as_they_are() -> None:
    rows = {row[0]: row[1] for row in _table((DOCS / "configuration.md").read_text(), "what")}
    default = limits.Limits()
    assert rows["topic name, group name"].startswith(f"{limits.MAX_TOPIC_NAME}, {limits.MAX_GROUP_NAME} characters")
    assert rows["properties"].startswith(
        f"{default.max_properties} entries; {default.max_properties_bytes // 1024} KiB"
    )
    assert rows["tag, message group"] == f"{limits.MAX_TAG_BYTES}, {limits.MAX_MESSAGE_GROUP_BYTES} bytes"
    assert rows["filter of tags, of SQL"] == f"{MAX_TAGS >> 10} KiB with {MAX_COUNT} tags, {MAX_FILTER} characters"
    assert rows["messages of a transaction"] == str(default.max_halves)
    assert rows["messages of a transaction together"].startswith(f"{limits.MAX_TRANSACTION_BYTES >> 20} MiB")
    assert rows["items of a request"] == str(default.max_items)
    assert rows["receipt handles of a request, credits at once"] == f"{limits.MAX_RECEIPTS:,}"
    assert limits.MAX_RECEIPTS == limits.MAX_CREDITS
    assert rows["topics of a consumer"] == str(limits.MAX_TOPICS_OF_CLIENT)
    assert rows["request"] == f"{LARGEST_REQUEST >> 20} MiB"
    delivery = DeliveryConfig()
    assert rows["lease"] == f"{delivery.shortest_lease / SECOND:g} s to {delivery.longest_lease / SECOND / 3600:g} h"
    assert rows["wait of a pull"] == f"{delivery.longest_wait // SECOND} s"
    assert rows["first check delay"] == f"{LONGEST_CHECK_DELAY // SECOND // 3600} h"
    sizes = f"{limits.MAX_REASON}, {limits.MAX_CLIENT_ID}, {limits.MAX_OPERATOR} characters"
    assert rows["reason, client id, operator"].startswith(sizes)


def test_the_table_of_errors_is_that_of_the_code() -> None:
    page = (DOCS / "protocol.md").read_text()
    shown = [(row[0].strip("`"), row[1]) for row in _table(page, "error in the broker")]
    assert shown == [(kind.__name__, code.name) for kind, code in CODES]


def test_every_reason_is_described() -> None:
    page = (DOCS / "protocol.md").read_text()
    shown = {reason for row in _table(page, "reason") for reason in re.findall(r"`(\w+)`", row[0])}
    used = {"INVALID_ARGUMENT", "VERDICT_CONFLICT", "OVERLOADED"}
    for path in (CHECKOUT / "broker").rglob("*.py"):
        used |= set(re.findall(r'reason="([A-Z_]+)"', path.read_text()))
    assert shown == used
    assert errors.VerdictConflict("", state=1).reason in shown


def test_the_tables_of_the_data_flow_exist() -> None:
    page = (DOCS / "architecture.md").read_text()
    named = {name for row in _table(page, "step") for name in re.findall(r"`(\w+)`", row[1])}
    assert named <= set(metadata.tables)
    # Not in the flow of a transaction: names, servers, brokers, whose turn it is, restores, cells, who may do what, and
    # who did.
    assert set(metadata.tables) - named == {
        "broker",
        "cluster_writer",
        "producer_group",
        "maintenance_turn",
        "offset_gap",
        "restoration",
        "cell",
        "placement",
        "cell_move",
        "move_state",
        "moving_row",
        "moved_name",
        "access_rule",
        "tenant_quota",
        "audit_record",
    }


def test_every_check_of_a_diagnosis_has_a_line() -> None:
    rows = _table((DOCS / "doctor.md").read_text(), "check")
    assert [row[0].strip("`") for row in rows] == list(ALL_CHECKS)


def test_the_bounds_of_a_diagnosis_are_those_of_the_code() -> None:
    """Each as a warning and as critical, in this order."""
    rows = {row[0].strip("`"): row[1] for row in _table((DOCS / "doctor.md").read_text(), "check")}
    for check, name, warning, critical in (
        ("settings", "connections", "90 %", "98 %"),
        ("history-list", "history", "100,000 entries", "1,000,000"),
        ("history-list", "log_bytes", "64 MiB", "1 GiB"),
        ("oldest-transaction", "open_for", "5 minutes", "an hour"),
        ("lock-holders", "held_for", "10 s", "5 min"),
        ("lock-holders", "waits_for", "2 s", "5 s"),
        ("clock", "clock", "2 s", "30 s"),
        ("clock", "ahead", "5 s", "60 s"),
        ("stuck-checks", "parked_for", "", "a day"),
        ("producers", "intervals", "3 intervals", "20"),
        ("retention", "behind", "5 minutes", "a day"),
        ("scheduled", "late", "30 s", "10 min"),
    ):
        assert getattr(DiagnosisSettings(), name) == Bounds(_figure(warning), _figure(critical)), name
        shown = rows[check]
        assert warning in shown, (check, name)
        assert critical in shown, (check, name)
    assert f"within {WARNING_DAYS} days ({CRITICAL_DAYS}: critical)" in rows["certificates"]


def _figure(text: str) -> float:
    """A bound as pages write it."""
    number, _, unit = text.replace(",", "").partition(" ")
    if number in {"a", "an"}:
        number = "1"
    units = {"%": 0.01, "MiB": 1 << 20, "GiB": 1 << 30, "s": 1e6, "min": 60e6, "minutes": 60e6, "hour": 3600e6}
    return round(float(number or 0) * {**units, "day": 24 * 3600e6}.get(unit, 1), 6)


def test_the_diagram_is_that_of_the_transitions() -> None:
    command = [sys.executable, str(CHECKOUT / "scripts" / "diagram"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_readme_shows_the_examples_as_they_are() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```\n", (CHECKOUT / "README.md").read_text(), re.S | re.M)
    assert blocks == [(CHECKOUT / "examples" / name).read_text() for name in ("producer.py", "consumer.py")]


def test_readme_begins_with_the_promise_and_two_commands() -> None:
    lines = (CHECKOUT / "README.md").read_text().splitlines()
    first_screen = "\n".join(lines[:30])
    assert "The promise" in first_screen
    assert first_screen.index("\nscripts/demo\n") < first_screen.index("\nscripts/test\n")
    assert "](docs/images/console-overview.png)" in first_screen
    assert len(lines) <= 120


WAYS = [CHECKOUT / "examples" / "producer.py", *sorted((CHECKOUT / "examples" / "ways").glob("*.*"))]


@pytest.mark.parametrize("example", WAYS, ids=lambda path: str(path.name))
def test_the_example_of_each_way_is_short_and_told_of(example: Path) -> None:
    assert len(example.read_text().splitlines()) <= 50
    assert f"(../../{example.relative_to(CHECKOUT)})" in (DOCS / "ways" / "README.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)]+)\)", re.sub(r"```.*?```", "", text, flags=re.S)):
        if not target.startswith("http"):
            assert (page.parent / target.split("#")[0]).exists(), target


TOP_FOLDERS = (
    "broker|client_core|consumer_sdk|halfmq_cli|halfmq_connect|halfmq_pipeline|producer_sdk|proto|scripts|tests|docs|"
    "examples"
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_files_that_are_named_exist(page: Path) -> None:
    for name in re.findall(rf"`((?:{TOP_FOLDERS})/[\w./-]+)`", page.read_text()):
        assert (CHECKOUT / name).exists(), name


def test_decisions_are_numbered_without_gaps() -> None:
    pages = sorted((DOCS / "decisions").glob("*.md"))
    assert [page.name[:4] for page in pages] == [f"{number:04}" for number in range(1, len(pages) + 1)]
    for page in pages:
        text = page.read_text()
        assert text.startswith(f"# {page.name[:4]}: ")
        assert "**Decided:**" in text


@pytest.mark.parametrize("heading", ["call", "feature"])
def test_each_line_about_rocketmq_names_a_test(heading: str) -> None:
    rows = _table((DOCS / "rocketmq.md").read_text(), heading)
    assert rows
    for name, _, tests in rows:
        named = re.findall(r"`([\w./]+\.py)::(\w+)`", tests)
        assert named, name
        for file, test in named:
            text = (CHECKOUT / "tests" / "gateway" / file).read_text()
            assert re.search(rf"^(async )?def {test}\(", text, re.M), (file, test)


def test_every_call_of_rocketmqs_protocol_has_a_line() -> None:
    rows = _table((DOCS / "rocketmq.md").read_text(), "call")
    methods = service_pb2.DESCRIPTOR.services_by_name["MessagingService"].methods
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row[0])) == sorted(m.name for m in methods)


def test_every_code_that_is_told_is_described() -> None:
    rows = _table((DOCS / "rocketmq.md").read_text(), "code")
    told = {int(code) for code in (*_BY_REASON.values(), *_BY_FIELD.values(), *(code for _, code in _BY_KIND))}
    shown = {Code.Value(name) for row in rows for name in re.findall(r"`([A-Z_]+)`", row[0])}
    assert {Code.Name(code) for code in told - shown} == _PLAIN


def test_every_test_on_the_page_of_what_survives_exists() -> None:
    page = (DOCS / "reliability.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page)
    assert len(named) > 25
    for file, name in named:
        text = (CHECKOUT / file).read_text()
        assert not name or re.search(rf"^(?:async )?def {name}\(", text, re.M), f"{file}::{name}"


def test_every_promise_fault_and_campaign_on_that_page_names_a_test() -> None:
    page = (DOCS / "reliability.md").read_text()
    for first, column in (("promise", -1), ("what breaks", -1), ("campaign", 1)):
        for row in _table(page, first):
            assert "`tests/" in row[column], row
