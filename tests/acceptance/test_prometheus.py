"""A real Prometheus scrapes a broker under load, draws every panel, and notices that the broker is gone."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from consumer_sdk import Consumer
from producer_sdk import Admin, LocalTransactionState, Message, Producer, TransactionListener, TransactionProducer
from support.alerts import RULES
from support.brokers import BrokerProcess
from support.connectors import measured, nobody_listens, subscription
from support.listings import listing_with
from support.metrics import promtool
from ways.shops import make_shop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHECKOUT = Path(__file__).parents[2]
DASHBOARDS = sorted((CHECKOUT / "deploy" / "grafana").glob("*.json"))
PATIENCE = 180.0
ELSEWHERE = {"halfmq_cdc_delay_seconds", "halfmq_bridge_lag_messages"}
"""Needs a binary log that is followed, or Kafka: seen in tests/connect."""


class Prometheus:
    """A running server with this project's rules, which wait for nothing here."""

    def __init__(self, folder: Path, **targets: str) -> None:
        """Starts it; it scrapes and evaluates every second. Takes an address for each job."""
        command = shutil.which("prometheus")
        if command is None:
            reason = "prometheus is not installed: apt-get install prometheus"
            if os.environ.get("CI"):
                pytest.fail(reason)
            pytest.skip(reason)
        rules = folder / "rules.yml"
        rules.write_text(re.sub(r"for: \w+", "for: 0s", RULES.read_text()))
        configuration = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules)],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": [target]}]} for job, target in targets.items()
            ],
        }
        file = folder / "prometheus.yml"
        file.write_text(json.dumps(configuration))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self._process = subprocess.Popen(
            [
                command,
                f"--config.file={file}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={self.address}",
                "--log.level=warn",
            ]
        )

    def get(self, path: str, **query: str) -> Any:
        """What its API answers."""
        with urlopen(f"http://{self.address}/api/v1/{path}?{urlencode(query)}", timeout=30) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]

    def await_that(self, holds: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                if holds():
                    return
            except URLError:
                pass  # It is starting.
            assert time.monotonic() < until, what
            time.sleep(0.2)

    def values(self, expr: str) -> list[float]:
        return [float(each["value"][1]) for each in self.get("query", query=expr)["result"]]

    def firing(self) -> set[str]:
        return {each["labels"]["alertname"] for each in self.get("alerts")["alerts"] if each["state"] == "firing"}

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)


class Undecided(TransactionListener):
    """Never knows."""

    def execute_local_transaction(self, message: object, arg: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    def check_local_transaction(self, message: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN


class Load:
    """Sends, decides and leaves undecided, receives, and gives up, until it is closed."""

    def __init__(self, endpoint: str) -> None:
        """Begins."""
        self._stack = ExitStack()
        with Admin(endpoint) as admin:
            admin.create_topic("orders", exist_ok=True)
            admin.create_group("billing", max_attempts=2)
        self._producer = self._stack.enter_context(Producer(endpoint))
        self._transactions = self._stack.enter_context(TransactionProducer(endpoint, "shop", Undecided()))
        self._consumer = self._stack.enter_context(Consumer(endpoint, "billing", "orders", prefetch=10))
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._ends.is_set():
            number += 1
            self._producer.send_many([Message("orders", "x" * 100) for _ in range(10)])
            prepared = self._transactions.prepare(Message("orders", "decided"))
            if number % 2:
                self._transactions.commit(prepared.transaction_id)
            elif number % 4:
                self._transactions.rollback(prepared.transaction_id)
            for message in self._consumer.receive(5, timeout=5):
                if number % 10:
                    message.ack()
                else:
                    message.nack(delay=0.0 if number % 20 else 60.0)
            self._ends.wait(0.05)

    def close(self) -> None:
        self._ends.set()
        self._thread.join(30)
        self._stack.close()


@contextmanager
def connectors(folder: Path, endpoint: str) -> Iterator[dict[str, str]]:
    """A relay, cdc and a bridge, the latter two without what they are for; where their metrics are, by job."""
    with Admin(endpoint) as admin:
        admin.create_topic("orders")
    file = folder / "shop.toml"
    file.write_text(subscription(endpoint, nobody_listens()))
    bridge = (f"--endpoint={endpoint}", f"--bootstrap-servers={nobody_listens()}", "--name=own", "--topic=orders")
    with make_shop("sqlite", folder) as shop, ExitStack() as stack:
        command = ("relay", f"--database={shop.url}", f"--endpoint={endpoint}", "--create-tables")
        yield {
            "relay": stack.enter_context(measured(*command)),
            "cdc": stack.enter_context(measured("cdc", str(file), environment={"CDC_PASSWORD": "none"})),
            "bridge": stack.enter_context(measured("bridge", "kafka", *bridge)),
        }


Watched = tuple[BrokerProcess, Prometheus, Load]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    """A broker under load, and the Prometheus that scrapes it."""
    settings = {"first_check": 0.2, "check_interval": 0.2, "max_checks": 3, "metrics_interval": 0.5}
    with (
        BrokerProcess(f"sqlite:///{tmp_path / 'halfmq.db'}", metrics_listen="127.0.0.1:0", **settings) as broker,
        connectors(tmp_path, broker.endpoint) as others,
    ):
        prometheus = Prometheus(tmp_path, halfmq=broker.metrics_endpoint, **others)
        load = Load(broker.endpoint)
        try:
            yield broker, prometheus, load
        finally:
            load.close()
            prometheus.close()


def expressions(file: Path) -> list[str]:
    """What the panels of a dashboard show, as Grafana would ask for it."""
    found = [target["expr"] for panel in json.loads(file.read_text())["panels"] for target in panel["targets"]]
    return [expr.replace("$__rate_interval", "10s").replace("$instance", ".*") for expr in found]


def test_every_panel_has_data_and_a_broker_that_is_gone_is_noticed(watched: Watched) -> None:
    broker, prometheus, load = watched
    prometheus.await_that(lambda: prometheus.values('up{job="halfmq"}') == [1], "it is not scraped")
    for file in DASHBOARDS:
        for expr in expressions(file):
            if any(name in expr for name in ELSEWHERE):
                continue
            prometheus.await_that(lambda expr=expr: bool(prometheus.values(expr)), f"{file.name}: no data: {expr}")
    assert prometheus.values("sum(rate(rocketmq_messages_in_total[10s]))")[0] > 0
    # The load leaves transactions undecided.
    prometheus.await_that(lambda: "HalfmqTransactionsParked" in prometheus.firing(), "not parked")
    assert "HalfmqBrokerDown" not in prometheus.firing()
    load.close()
    broker.kill()
    prometheus.await_that(lambda: "HalfmqBrokerDown" in prometheus.firing(), "nobody notices")


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_a_dashboard_is_of_grafanas_form(file: Path) -> None:
    dashboard = json.loads(file.read_text())
    assert dashboard["uid"] == file.stem
    assert dashboard["schemaVersion"] >= 36
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert max(x for x, _ in cells) < 24, "Grafana's grid has 24 columns"
        assert not cells & taken, "panels overlap"
        taken |= cells
        assert panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert set(re.findall(r"\$([a-z]\w*)", target["expr"])) <= variables


def test_all_that_panels_ask_for_is_promql(tmp_path: Path) -> None:
    asked = [expr for file in DASHBOARDS for expr in expressions(file)]
    rules = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(asked)]
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(asked)} rules found" in promtool("check", "rules", str(file))


def test_the_dashboards_are_what_the_script_makes() -> None:
    subprocess.run([sys.executable, "scripts/dashboards", "--check"], cwd=CHECKOUT, check=True)


def test_prometheus_takes_the_configuration_of_the_page(tmp_path: Path) -> None:
    file = tmp_path / "prometheus.yml"
    file.write_text(listing_with("docs/metrics.md", "scrape_configs").text)
    assert "SUCCESS" in promtool("check", "config", str(file))
