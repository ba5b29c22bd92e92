"""Where settings come from, which of them wins, and every bound at one less, exactly, and one more."""

from __future__ import annotations

import json
import math
import os
import socket
from dataclasses import FrozenInstanceError, fields
from typing import TYPE_CHECKING, Any

import pytest

from broker.config import BrokerConfig
from broker.config_sources import OLD_NAMES, load_config
from broker.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

# Three values for each setting, none of them its default: what the file, the environment and the command line say.
VALUES: dict[str, tuple[Any, Any, Any]] = {
    "database": ("sqlite:///file.db", "sqlite:///environment.db", "sqlite:///argument.db"),
    "cells": ("b=mysql://file/b", "b=mysql://environment/b", "b=mysql://argument/b"),
    "table_prefix": ("file_", "environment_", "argument_"),
    "listen": ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"),
    "admin_listen": ("127.0.0.1:4", "127.0.0.1:5", "127.0.0.1:6"),
    "broker_id": ("file", "environment", "argument"),
    "workers": (2, 3, 4),
    "first_check": (1.5, 2.5, 3.5),
    "check_interval": (1.5, 2.5, 3.5),
    "max_checks": (1, 2, 3),
    "lease": (1.5, 2.5, 3.5),
    "queue_count": (1, 2, 3),
    "retention_hours": (1.5, 2.5, 3.5),
    "max_delay_hours": (1.5, 2.5, 3.5),
    "history_hours": (1.5, 2.5, 3.5),
    "sink_hours": (1.5, 2.5, 3.5),
    "auto_create": (True, True, True),
    "auto_create_groups": (True, False, True),
    "max_body_bytes": (1, 2, 3),
    "max_calls": (1, 2, 3),
    "max_streams": (1, 2, 3),
    "max_request_bytes": (1 << 26, 1 << 27, 1 << 28),
    "client_calls": (1, 2, 3),
    "client_streams": (1, 2, 3),
    "client_request_bytes": (1, 2, 3),
    "client_connections": (1, 2, 3),
    "client_groups": (1, 2, 3),
    "drain": (1.5, 2.5, 3.5),
    "answer_timeout": (1.5, 2.5, 3.5),
    "reconnect_timeout": (1.5, 2.5, 3.5),
    "allow_unsafe_database": (True, True, True),
    "migrate": (False, False, False),
    "tls_certificate": ("file.pem", "environment.pem", "argument.pem"),
    "tls_key": ("file.key", "environment.key", "argument.key"),
    "tls_client_ca": ("file-ca.pem", "environment-ca.pem", "argument-ca.pem"),
    "access": (True, True, True),
    "access_tokens": ("file.toml", "environment.toml", "argument.toml"),
    "access_certificates": (True, True, True),
    "access_without_tls": (True, True, True),
    "jwt_keys": ("file.json", "environment.json", "argument.json"),
    "jwt_audience": ("file", "environment", "argument"),
    "jwt_issuer": ("file", "environment", "argument"),
    "jwt_clock_skew": (1.5, 2.5, 3.5),
    "audit_days": (1.5, 2.5, 3.5),
    "rocketmq": (True, True, True),
    "rocketmq_endpoints": ("file:1", "environment:2", "argument:3"),
    "rocketmq_keys": ("file.keys", "environment.keys", "argument.keys"),
    "rocketmq_signature_window": (1.5, 2.5, 3.5),
    "rocketmq_min_invisible": (1.5, 2.5, 3.5),
    "console_listen": ("127.0.0.1:17", "127.0.0.1:18", "127.0.0.1:19"),
    "console_hosts": ("file.example", "environment.example", "argument.example"),
    "traces": (True, True, True),
    "metrics_listen": ("127.0.0.1:7", "127.0.0.1:8", "unix:/tmp/metrics"),
    "metrics_interval": (1.5, 2.5, 3.5),
    "metrics_names": (1, 2, 3),
    "log_format": ("json", "json", "json"),
    "log_level": ("debug", "warning", "error"),
}
APART = {"tls_optional": False}
"""Settings that cannot be together with those above, and their defaults."""
FROM_FILE, FROM_ENVIRONMENT, FROM_ARGUMENTS = (
    {name: values[source] for name, values in VALUES.items()} for source in range(3)
)
NOTHING: dict[str, str] = {}


def written(folder: Path, settings: dict[str, Any]) -> Path:
    """A TOML file with these settings; TOML writes such values as JSON does."""
    file = folder / "broker.toml"
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    file.write_text("\n".join(["[broker]", *lines, ""]), encoding="utf-8")
    return file


def in_environment(settings: dict[str, Any]) -> dict[str, str]:
    return {f"HALFMQ_{name.upper()}": str(value) for name, value in settings.items()}


def test_the_table_here_has_every_setting_and_no_default() -> None:
    defaults = {field.name: field.default for field in fields(BrokerConfig)}
    assert list(VALUES) == [name for name in defaults if name not in APART]
    assert {name: defaults[name] for name in APART} == APART
    assert not [name for name, values in VALUES.items() if defaults[name] in values]


def test_nothing_said_means_the_defaults() -> None:
    assert load_config({}, environment=NOTHING) == BrokerConfig()
    assert load_config(dict.fromkeys(VALUES), environment={"HOME": "/root", "LEASE": "7"}) == BrokerConfig()


def test_each_source_alone_sets_everything(tmp_path: Path) -> None:
    from_file = load_config({}, environment=NOTHING, file=written(tmp_path, FROM_FILE))
    assert vars(from_file) == FROM_FILE | APART
    assert vars(load_config({}, environment=in_environment(FROM_ENVIRONMENT))) == FROM_ENVIRONMENT | APART
    assert vars(load_config(FROM_ARGUMENTS, environment=NOTHING)) == FROM_ARGUMENTS | APART


@pytest.mark.parametrize("name", VALUES)
def test_arguments_win_over_the_environment_and_that_over_the_file(tmp_path: Path, name: str) -> None:
    file = written(tmp_path, FROM_FILE)
    of_file, of_environment, of_argument = VALUES[name]
    environment = in_environment({name: of_environment})
    expected = FROM_FILE | APART
    assert vars(load_config({}, environment=environment, file=file)) == {**expected, name: of_environment}
    assert vars(load_config({name: of_argument}, environment=environment, file=file)) == {**expected, name: of_argument}
    assert vars(load_config({name: of_argument}, environment=NOTHING, file=file)) == {**expected, name: of_argument}
    assert vars(load_config({name: None}, environment=NOTHING, file=file)) == {**expected, name: of_file}


def test_tls_is_not_optional_where_clients_must_show_certificates(tmp_path: Path) -> None:
    needed = {"tls_certificate": "chain.pem", "tls_key": "key.pem", "tls_optional": True}
    for source in (
        load_config(needed, environment=NOTHING),
        load_config({}, environment=in_environment(needed)),
        load_config({}, environment=NOTHING, file=written(tmp_path, needed)),
    ):
        assert source.tls_optional
    with pytest.raises(ConfigurationError, match="leave one of them out") as refused:
        load_config({**needed, "tls_client_ca": "ca.pem"}, environment=NOTHING)
    assert refused.value.field == "tls_optional"
    with pytest.raises(ConfigurationError, match="needs tls_certificate and tls_key") as refused:
        load_config({"tls_optional": True}, environment=NOTHING)
    assert refused.value.field == "tls_optional"


def test_the_database_may_be_named_by_a_file_in_each_source(tmp_path: Path) -> None:
    """Arguments can be seen by everybody on the machine; a file has rights."""
    secret = tmp_path / "url"
    secret.write_text("mysql://me:secret@db/halfmq\n")
    named, other = {"database_file": str(secret)}, {"database": "sqlite:///other.db"}
    url = "mysql://me:secret@db/halfmq"
    file = written(tmp_path, named)
    assert load_config({}, environment=NOTHING, file=file).database == url
    assert load_config({}, environment=in_environment(other), file=file).database == other["database"]
    assert load_config(named, environment=in_environment(other)).database == url
    assert load_config(other, environment=in_environment(named)).database == other["database"]
    for both in ({**named, **other},):
        with pytest.raises(ConfigurationError, match="both set") as refused:
            load_config(both, environment=NOTHING)
        assert refused.value.field == "database"


@pytest.mark.parametrize("content", ["", "\n", "sqlite:///a.db\nsqlite:///b.db", b"\xff"])
def test_a_file_that_holds_no_url_is_refused_without_showing_it(tmp_path: Path, content: str | bytes) -> None:
    file = tmp_path / "url"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigurationError, match="must hold one line") as refused:
        load_config({"database_file": str(file)}, environment=NOTHING)
    assert refused.value.field == "database_file"
    assert "sqlite" not in refused.value.message
    with pytest.raises(ConfigurationError, match="No such file"):
        load_config({"database_file": str(tmp_path / "nowhere")}, environment=NOTHING)


def test_groups_are_made_with_topics_and_for_rocketmqs_clients_unless_told_otherwise() -> None:
    for settings, made in (
        ({}, False),
        ({"auto_create": True}, True),
        ({"rocketmq": True}, True),
        ({"auto_create_groups": True}, True),
        ({"auto_create": True, "auto_create_groups": False}, False),
        ({"rocketmq": True, "auto_create_groups": False}, False),
    ):
        assert BrokerConfig(**settings).creates_groups is made, settings  # type: ignore[arg-type]


def test_signatures_are_of_today_where_access_is_on_unless_told_otherwise() -> None:
    """Further apart than 14 hours no two clocks of the world are, whatever their time zones."""
    keys: dict[str, Any] = {"rocketmq": True, "rocketmq_keys": "keys"}
    for settings, window in (
        (keys, 0),
        ({**keys, "access": True}, 15 * 3600),
        ({**keys, "access": True, "rocketmq_signature_window": 0.0}, 0),
        ({**keys, "access": True, "rocketmq_signature_window": 300.0}, 300),
        ({**keys, "rocketmq_signature_window": 300.0}, 300),
        ({}, 0),
        ({"access": True, "access_tokens": "tokens.toml"}, 15 * 3600),
    ):
        assert load_config(settings, environment=NOTHING).signature_window == window, settings
    variables = in_environment({**keys, "access": True})
    assert load_config({}, environment=variables).signature_window == 15 * 3600
    set_off = {**variables, "HALFMQ_ROCKETMQ_SIGNATURE_WINDOW": "0"}
    assert load_config({}, environment=set_off).signature_window == 0


@pytest.mark.parametrize("prefix", ["a", "halfmq_", "a1_", "x" * 30])
def test_a_prefix_of_tables(prefix: str) -> None:
    assert BrokerConfig(table_prefix=prefix).table_prefix == prefix


@pytest.mark.parametrize("prefix", ["1a", "_a", "A", "a-b", "a.b", "a b", "`", "x" * 31, "ü", "a\n"])
def test_what_cannot_be_a_prefix_of_tables_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigurationError, match="30 lower-case letters") as refused:
        BrokerConfig(table_prefix=prefix)
    assert refused.value.field == "table_prefix"


@pytest.mark.parametrize("name", ["auto_create", "auto_create_groups", "allow_unsafe_database", "migrate", "rocketmq"])
@pytest.mark.parametrize("winner", [True, False])
def test_a_switch_that_is_off_wins_as_well(tmp_path: Path, name: str, winner: bool) -> None:
    loser = not winner
    file = written(tmp_path, {name: loser})
    assert getattr(load_config({}, environment=in_environment({name: winner}), file=file), name) is winner
    assert getattr(load_config({name: winner}, environment=in_environment({name: loser}), file=file), name) is winner


@pytest.mark.parametrize(
    ("text", "value"),
    [(text, True) for text in ("1", "true", "True", "yes", "on", "ON")]
    + [(text, False) for text in ("0", "false", "FALSE", "no", "off")],
)
def test_what_a_switch_takes(text: str, value: bool) -> None:
    assert load_config({}, environment={"HALFMQ_AUTO_CREATE": text}).auto_create is value


def test_the_processs_own_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALFMQ_LEASE", "7")
    assert load_config({}).lease == 7.0


def test_a_whole_number_is_a_time_too(tmp_path: Path) -> None:
    lease = load_config({}, environment=NOTHING, file=written(tmp_path, {"lease": 7})).lease
    assert (lease, type(lease)) == (7.0, float)


def test_a_file_may_say_nothing(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    for content in ("", "[broker]\n"):
        file.write_text(content)
        assert load_config({}, environment=NOTHING, file=file) == BrokerConfig()


def test_settings_are_checked_together_wherever_they_come_from(tmp_path: Path) -> None:
    file = written(tmp_path, {"tls_certificate": "chain.pem"})
    assert load_config({"tls_key": "key.pem"}, environment=NOTHING, file=file).tls_key == "key.pem"
    with pytest.raises(ConfigurationError) as refused:
        load_config({}, environment=NOTHING, file=file)
    assert refused.value.field == "tls_key"


NEEDS = {
    "tls_client_ca": "needs tls_certificate and tls_key",
    "access_tokens": "needs access",
    "access_certificates": "needs access and tls_client_ca",
    "access_without_tls": "needs access",
    "jwt_keys": "needs access and jwt_audience",
    "jwt_issuer": "needs jwt_keys",
    "rocketmq_endpoints": "needs rocketmq",
    "rocketmq_keys": "needs rocketmq",
    "rocketmq_signature_window": "needs rocketmq_keys",
}


@pytest.mark.parametrize("name", NEEDS)
def test_a_setting_that_makes_no_sense_alone_names_what_it_needs(tmp_path: Path, name: str) -> None:
    alone = {name: VALUES[name][0]}
    for settings, environment, file in (
        (alone, NOTHING, None),
        ({}, in_environment(alone), None),
        ({}, NOTHING, written(tmp_path, alone)),
    ):
        with pytest.raises(ConfigurationError) as refused:
            load_config(settings, environment=environment, file=file)
        assert refused.value.field == name
        assert NEEDS[name] in refused.value.message
    needed = {"tls_certificate": "chain.pem", "tls_key": "key.pem", "rocketmq": True, "rocketmq_keys": "keys"}
    if "access" in NEEDS[name] or "jwt" in NEEDS[name]:
        needed |= {"access": True, "tls_client_ca": "ca.pem", "jwt_keys": "keys.json", "jwt_audience": "halfmq"}
    needed = {each: value for each, value in needed.items() if each != name}
    assert getattr(load_config({**needed, **alone}, environment=NOTHING), name) == VALUES[name][0]
    # What it needs may come from another source.
    assert getattr(load_config(needed, environment=in_environment(alone)), name) == VALUES[name][0]


def between(least: float, most: float) -> tuple[list[Any], list[Any]]:
    """Numbers that fit, and numbers that just do not."""
    if isinstance(least, int) and isinstance(most, int):
        return [least, least + 1, most - 1, most], [least - 1, most + 1, -most]
    right = [least, math.nextafter(least, math.inf), math.nextafter(most, 0), most]
    return right, [math.nextafter(least, -math.inf), math.nextafter(most, math.inf), -most]


BOUNDS: dict[str, tuple[list[Any], list[Any]]] = {
    "first_check": between(0.0, 24 * 3600.0),
    "check_interval": between(0.01, 24 * 3600.0),
    "max_checks": between(1, 1000),
    "lease": between(0.1, 12 * 3600.0),
    "workers": between(1, 64),
    "queue_count": between(1, 1024),
    "retention_hours": between(1e-7, 100 * 366 * 24.0),
    "max_body_bytes": between(1, 15 * 2**20),
    "max_delay_hours": ([0, 0.5, 366 * 24], [-1e-9, 366 * 24 + 0.001]),
    "history_hours": ([0, 0.5, 100 * 366 * 24], [-1e-9, 100 * 366 * 24 + 0.001]),
    "sink_hours": between(1e-7, 100 * 366 * 24.0),
    "max_calls": ([1, 1_000_000], [0, -1, 1_000_001]),
    "max_streams": ([1, 1_000_000], [0, -1, 1_000_001]),
    "max_request_bytes": ([1 << 26, 1 << 40], [0, -1, (1 << 26) - 1, (1 << 40) + 1]),
    "client_calls": ([0, 1_000_000], [-1, 1_000_001]),
    "client_streams": ([0, 1_000_000], [-1, 1_000_001]),
    "client_request_bytes": ([0, 1 << 40], [-1, (1 << 40) + 1]),
    "client_connections": ([0, 1_000_000], [-1, 1_000_001]),
    "client_groups": ([0, 1_000_000], [-1, 1_000_001]),
    "drain": between(0.0, 3600.0),
    "answer_timeout": between(0.1, 3600.0),
    "reconnect_timeout": between(0.01, 3600.0),
    "jwt_clock_skew": between(0.0, 3600.0),
    "audit_days": between(1.0, 36600.0),
    "rocketmq_signature_window": between(0.0, 86_400.0),
    "rocketmq_min_invisible": between(0.1, 3600.0),
    "metrics_interval": between(0.1, 3600.0),
    "metrics_names": between(1, 100_000),
    "metrics_listen": (
        ["", "127.0.0.1:0", "0.0.0.0:9464", "[::1]:9464", "unix:/run/halfmq/metrics"],
        [":", "9464", ":9464", "127.0.0.1", "127.0.0.1:65536", "127.0.0.1:x", "unix:", "127.0.0.1:8085"],
    ),
    "log_format": (["text", "json"], ["", "JSON", "xml", "text "]),
    "log_level": (["debug", "info", "warning", "error"], ["", "INFO", "warn", "critical", "error "]),
    "listen": (
        ["127.0.0.1:0", "127.0.0.1:1", "localhost:65534", "0.0.0.0:65535", "[::1]:8085"],
        ["", ":", "8085", ":8085", "127.0.0.1", "127.0.0.1:", "127.0.0.1:-1", "127.0.0.1:65536", "127.0.0.1:x"],
    ),
    "console_listen": (
        ["", "127.0.0.1:0", "0.0.0.0:8090", "[::1]:8085"],
        [":", "8086", "127.0.0.1", "127.0.0.1:65536", "127.0.0.1:8085"],
    ),
    "admin_listen": (
        ["", "127.0.0.1:0", "127.0.0.1:1", "0.0.0.0:8085", "127.0.0.1:8086", "localhost:65535", "[::1]:8085"],
        [":", "8086", ":8086", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:x", "127.0.0.1:8085"],
    ),
}


def test_every_number_has_bounds() -> None:
    numbers = {field.name for field in fields(BrokerConfig) if str(field.type).startswith(("int", "float"))}
    assert numbers <= BOUNDS.keys()


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds(name: str) -> None:
    right, wrong = BOUNDS[name]
    needed = {"rocketmq": True, "rocketmq_keys": "keys"} if name in NEEDS else {}
    for value in right:
        assert getattr(load_config({**needed, name: value}, environment=NOTHING), name) == value
    for value in wrong:
        with pytest.raises(ConfigurationError) as refused:
            load_config({**needed, name: value}, environment=NOTHING)
        assert refused.value.field == name, value
        assert name in refused.value.message


@pytest.mark.parametrize("name", [field.name for field in fields(BrokerConfig) if "float" in str(field.type)])
@pytest.mark.parametrize("text", ["inf", "-inf", "nan"])
def test_a_time_is_a_finite_number(name: str, text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load_config({}, environment=in_environment({name: text}))
    assert refused.value.field == name
    assert "finite" in refused.value.message


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        *[("max_checks", value, "a whole number") for value in ("1.5", "1.0", "true", "inf", "nan", "[1]", "'x'")],
        *[("lease", value, "a number") for value in ("true", "[1]", "{ a = 1 }", "1979-05-27", "'x'", "''")],
        *[("auto_create", value, "true or false") for value in ("2", "'perhaps'", "[true]", "''")],
        *[("broker_id", value, "a text") for value in ("3", "true", "['a']")],
    ],
)
def test_a_value_of_the_wrong_kind_in_the_file(tmp_path: Path, name: str, value: str, wanted: str) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(f"[broker]\n{name} = {value}\n")
    with pytest.raises(ConfigurationError, match=f"must be {wanted}") as refused:
        load_config({}, environment=NOTHING, file=file)
    assert refused.value.field == name


def test_what_is_made_of_the_settings() -> None:
    config = BrokerConfig(
        first_check=0.25, check_interval=0.5, max_checks=3, max_body_bytes=100, retention_hours=0.5, broker_id="one"
    )
    policy = config.check_policy()
    assert (policy.first_check, policy.interval, policy.max_checks) == (250_000, 500_000, 3)
    assert config.limits().max_body == 100
    assert config.retention == 1_800_000_000
    assert config.name == "one"
    assert BrokerConfig().name == f"{socket.gethostname()}-{os.getpid()}"


def test_the_text_of_the_settings_shows_no_password() -> None:
    config = BrokerConfig(database="mysql://me:hidden@db/halfmq", broker_id="one")
    assert "hidden" not in f"{config!r} {config}"
    assert "broker_id='one'" in repr(config)


def test_settings_stay_as_they_are() -> None:
    with pytest.raises(FrozenInstanceError):
        BrokerConfig().lease = 7.0  # type: ignore[misc]


@pytest.mark.parametrize(("old", "new"), OLD_NAMES.items())
def test_an_old_name_is_taken_with_a_warning_wherever_it_stands(tmp_path: Path, old: str, new: str) -> None:
    for arguments, environment, file in (
        ({old: 7.0}, {}, None),
        ({}, {f"HALFMQ_{old.upper()}": "7"}, None),
        ({}, {}, written(tmp_path, {old: 7})),
    ):
        with pytest.warns(FutureWarning, match=rf"(?i:{old}) in .* is now called {new}"):
            config = load_config(arguments, environment=environment, file=file)
        assert getattr(config, new) == 7.0
    renamed: list[str] = []
    load_config({}, environment={f"HALFMQ_{old.upper()}": "7"}, renamed=renamed)
    assert len(renamed) == 1
    assert renamed[0].startswith(f"the setting HALFMQ_{old.upper()} in the environment is now called {new};")
    with pytest.raises(ConfigurationError, match=f"{old} is the old name of {new}"):
        load_config({old: 7.0, new: 8.0}, environment={})


def test_two_free_ports_are_two_addresses() -> None:
    free = {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0"}
    assert load_config(free, environment=NOTHING).admin_listen == "127.0.0.1:0"


def test_access_needs_a_way_to_be_known() -> None:
    with pytest.raises(ConfigurationError, match="lets nobody in") as refused:
        load_config({"access": True}, environment=NOTHING)
    assert refused.value.field == "access"
    assert load_config({"access": True, "access_tokens": "tokens.toml"}, environment=NOTHING).access


def test_access_covers_rocketmqs_clients() -> None:
    both = {"access": True, "access_tokens": "tokens.toml", "rocketmq": True}
    with pytest.raises(ConfigurationError, match="rocketmq_keys") as refused:
        load_config(both, environment=NOTHING)
    assert refused.value.field == "access"
    assert load_config({**both, "rocketmq_keys": "keys"}, environment=NOTHING).access


def test_an_audience_without_keys_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="needs jwt_keys") as refused:
        load_config({"jwt_audience": "halfmq"}, environment=NOTHING)
    assert refused.value.field == "jwt_audience"
