"""docker-compose.yml has what a first `docker compose up` needs. (No engine is needed to check that.)"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from compose_spec import PyCompose

from support.deployment import AFTERWARDS, CHECKOUT, DEPLOY, image_variables, parsed, port, settings

COMPOSE: dict[str, Any] = yaml.safe_load((CHECKOUT / "docker-compose.yml").read_text())
BROKERS = {name: each for name, each in COMPOSE["services"].items() if name.startswith("broker")}


@pytest.fixture
def services() -> dict[str, Any]:
    services: dict[str, Any] = COMPOSE["services"]
    return services


def read(file: str) -> Any:
    return yaml.safe_load((DEPLOY / "compose" / file).read_text())


def test_it_follows_the_compose_specification() -> None:
    PyCompose.from_json(json.dumps(COMPOSE)).to_spec()


def test_mysql_is_durable_and_says_when_it_is_ready(services: dict[str, Any]) -> None:
    mysql = services["mysql"]
    assert mysql["image"].startswith("mysql:9")
    assert "--innodb-flush-log-at-trx-commit=1" in mysql["command"]
    assert "--sync-binlog=1" in mysql["command"]
    assert mysql["healthcheck"]["test"][0] == "CMD"
    assert any(volume.endswith(":/var/lib/mysql") for volume in mysql["volumes"])


def test_two_brokers_share_the_database() -> None:
    first, second = BROKERS.values()
    assert first["ports"] != second["ports"]
    assert first["command"] == second["command"]
    assert first["environment"] == second["environment"]
    assert (first["build"], first["image"]) == (".", "halfmq")


def test_brokers_wait_for_mysql_and_sign_in_as_it_was_set_up(services: dict[str, Any]) -> None:
    environment = services["mysql"]["environment"]
    broker = services["broker-1"]
    assert broker["depends_on"] == {"mysql": {"condition": "service_healthy"}}
    database = urlsplit(broker["environment"]["HALFMQ_DATABASE"])
    assert (database.hostname, database.port) == ("mysql", 3306)
    assert database.username == environment["MYSQL_USER"]
    assert database.password == environment["MYSQL_PASSWORD"]
    assert database.path == f"/{environment['MYSQL_DATABASE']}"


@pytest.mark.parametrize("name", BROKERS)
def test_a_broker_is_reached_and_may_drain(name: str) -> None:
    broker = BROKERS[name]
    config = settings(broker["command"], {**image_variables(), **broker["environment"]})
    (published,) = broker["ports"]
    assert port(published) == port(config.listen)
    assert int(broker["stop_grace_period"].removesuffix("s")) > config.drain + AFTERWARDS


@pytest.mark.parametrize("name", BROKERS)
def test_a_broker_counts_as_up_when_it_is_ready(name: str) -> None:
    broker = BROKERS[name]
    kind, *asked = broker["healthcheck"]["test"]
    command, given = parsed(asked[1:])
    assert (kind, asked[0], command, given["ready"]) == ("CMD", "halfmq", "health", True)
    assert port(given["endpoint"]) == port(image_variables()["HALFMQ_LISTEN"])


@pytest.mark.parametrize("name", BROKERS)
def test_a_broker_has_no_rights_that_it_does_not_need(name: str) -> None:
    broker = BROKERS[name]
    assert (broker["read_only"], broker["cap_drop"]) == (True, ["ALL"])
    assert "no-new-privileges:true" in broker["security_opt"]


def test_ports_are_this_machines_alone(services: dict[str, Any]) -> None:
    published = [each for service in services.values() for each in service.get("ports", [])]
    assert len({each.rsplit(":", 1)[0] for each in published}) == len(published) == 4
    assert all(each.startswith("127.0.0.1:") for each in published)


def test_files_that_are_mounted_exist(services: dict[str, Any]) -> None:
    mounted = [each.split(":")[0] for service in services.values() for each in service.get("volumes", [])]
    files = [each for each in mounted if each.startswith(".")]
    assert files
    assert [each for each in files if not (CHECKOUT / each).exists()] == []
    assert {each for each in mounted if not each.startswith(".")} == set(COMPOSE["volumes"])


def test_prometheus_asks_each_broker_where_it_tells_its_metrics() -> None:
    configuration = read("prometheus.yml")
    (job,) = configuration["scrape_configs"]
    targets = job["static_configs"][0]["targets"]
    assert {target.split(":")[0] for target in targets} == set(BROKERS)
    for broker in BROKERS.values():
        assert {port(target) for target in targets} == {port(broker["environment"]["HALFMQ_METRICS_LISTEN"])}
    rules = sorted((DEPLOY / "prometheus").glob("*.yml"))
    assert rules
    for file in rules:
        assert f'job="{job["job_name"]}"' in file.read_text()


def test_grafana_has_a_datasource_and_finds_the_dashboards(services: dict[str, Any]) -> None:
    (source,) = read("grafana-datasource.yml")["datasources"]
    assert (source["type"], urlsplit(source["url"]).hostname) == ("prometheus", "prometheus")
    (provider,) = read("grafana-dashboards.yml")["providers"]
    mounted = {each.split(":")[1]: each.split(":")[0] for each in services["grafana"]["volumes"]}
    folder = CHECKOUT / mounted[provider["options"]["path"]]
    assert list(folder.glob("*.json"))
