"""docker-compose.yml has what a first `docker compose up` needs. (No engine is needed to check that.)"""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

_CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((_CHECKOUT / "docker-compose.yml").read_text())["services"]
    return services


def test_mysql_is_durable_and_says_when_it_is_ready(services: dict[str, Any]) -> None:
    mysql = services["mysql"]
    assert mysql["image"].startswith("mysql:9")
    assert "--innodb-flush-log-at-trx-commit=1" in mysql["command"]
    assert "--sync-binlog=1" in mysql["command"]
    assert mysql["healthcheck"]["test"][0] == "CMD"
    assert any(volume.endswith(":/var/lib/mysql") for volume in mysql["volumes"])


def test_two_brokers_share_the_database(services: dict[str, Any]) -> None:
    brokers = [service for name, service in services.items() if name.startswith("broker")]
    assert len(brokers) == 2
    assert len({broker["ports"][0].split(":")[0] for broker in brokers}) == 2
    assert brokers[0]["command"] == brokers[1]["command"]


def test_brokers_wait_for_mysql_and_sign_in_as_it_was_set_up(services: dict[str, Any]) -> None:
    environment = services["mysql"]["environment"]
    broker = services["broker-1"]
    assert broker["depends_on"] == {"mysql": {"condition": "service_healthy"}}
    database = urlsplit(broker["environment"]["HALFMQ_DATABASE"])
    assert (database.hostname, database.port) == ("mysql", 3306)
    assert database.username == environment["MYSQL_USER"]
    assert database.password == environment["MYSQL_PASSWORD"]
    assert database.path == f"/{environment['MYSQL_DATABASE']}"


def test_the_published_port_is_the_one_brokers_listen_on(services: dict[str, Any]) -> None:
    broker = services["broker-2"]
    listen = next(each for each in broker["command"] if each.startswith("--listen="))
    assert broker["ports"][0].split(":")[1] == listen.rsplit(":", 1)[1]


def test_the_image_has_all_that_goes_into_the_wheel(services: dict[str, Any]) -> None:
    steps = [shlex.split(line) for line in services["broker-1"]["build"]["dockerfile_inline"].splitlines()]
    copied = {source for step in steps if step[0] == "COPY" for source in step[1:-1]}
    project = tomllib.loads((_CHECKOUT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert steps[0][0] == "FROM"
    assert {"pyproject.toml", project["project"]["readme"]} <= copied
    assert all(any(package == source or package.startswith(f"{source}/") for source in copied) for package in packages)
    assert any(step[:3] == ["RUN", "pip", "install"] and ".[broker]" in step for step in steps)
