"""`halfmq serve` with something wrong: exit status 2 and one line that names the setting and what to do.

Settings of the server itself are tested where a server may be changed: test_database_killed_under_load.py.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from support.databases import KINDS, server_url
from support.serving import run_serve

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a server; the database in it exists."""
    return server_url(request.param)


def altered(url: str, *, user: str = "halfmq:halfmq", port: int | None = None, path: str | None = None) -> str:
    parts = urlsplit(url)
    place = f"{user}@{parts.hostname}:{port or parts.port}"
    return parts._replace(netloc=place, path=parts.path if path is None else path).geturl()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("halfmq", "mysql://user:password@host:3306/database"),
        ("mysql://user:secret@host:port/database", "mysql://user:password@host:3306/database"),
        ("postgresql://user:secret@127.0.0.1/database", "'postgresql' is not supported"),
        ("mysql://user:secret@127.0.0.1:3306", "names no database"),
        ("sqlite:////no/such/folder/halfmq.db", "'/no/such/folder' does not exist; create it"),
        ("mysql://user:secret@127.0.0.1:3306/database?colour=red", "colour"),
    ],
)
def test_a_wrong_url(wrong: str, words: str) -> None:
    refused = run_serve("--database", wrong)
    refused.names("database", words)
    assert "secret" not in refused.errors


def test_a_wrong_password(url: str) -> None:
    refused = run_serve("--database", altered(url, user="halfmq:not-this-one"))
    refused.names("database", "refuses user 'halfmq'", "check name, password and grants")
    assert "not-this-one" not in refused.errors


def test_an_unknown_user(url: str) -> None:
    run_serve("--database", altered(url, user="nobody:x")).names("database", "refuses user 'nobody'")


def test_a_missing_database(url: str) -> None:
    refused = run_serve("--database", altered(url, path="/not_there"))
    refused.names("database", "'not_there' does not exist", "CREATE DATABASE")


def test_an_unreachable_server(unused_port: int) -> None:
    refused = run_serve("--database", f"mysql://halfmq:secret@127.0.0.1:{unused_port}/halfmq")
    refused.names("database", f"127.0.0.1:{unused_port} cannot be reached", "is the port right?")
    assert "secret" not in refused.errors


def test_an_unknown_host() -> None:
    run_serve("--database", "mysql://halfmq@nowhere.invalid/halfmq").names("database", "nowhere.invalid", "reached")


def test_a_server_that_is_no_database(database_file: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # Somebody else's protocol: it hangs up at once.
        port = listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        run_serve("--database", f"mysql://halfmq@127.0.0.1:{port}/halfmq").names("database", "cannot be reached")


@pytest.fixture
def database_file(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'halfmq.db'}"


@pytest.fixture
def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def test_a_port_in_use(database_file: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        refused = run_serve("--database", database_file, "--listen", address)
    refused.names("listen", address, "in use", "is another process there")


@pytest.mark.parametrize("address", ["8085", "127.0.0.1:70000"])
def test_an_address_that_is_none(database_file: str, address: str) -> None:
    run_serve("--database", database_file, "--listen", address).names("listen", "host:port")


@pytest.mark.parametrize(
    ("address", "remedy"),
    [("192.0.2.1:8085", "is it this machine's?"), ("nowhere.invalid:8085", "no machine has the name nowhere.invalid")],
)
def test_an_address_that_is_not_here(database_file: str, address: str, remedy: str) -> None:
    run_serve("--database", database_file, "--listen", address).names("listen", address, remedy)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[broker]\ncolour = 'red'\n", ("colour", "do not exist")),
        ("[broker\n", ("is not TOML",)),
        ("broker = 3\n", ("[broker]",)),
    ],
)
def test_a_wrong_file(tmp_path: Path, content: str, words: tuple[str, ...]) -> None:
    file = tmp_path / "broker.toml"
    file.write_bytes(content.encode("latin-1"))
    run_serve("--config", str(file)).names("config", "broker.toml", *words)


def test_a_missing_file(tmp_path: Path) -> None:
    run_serve("--config", str(tmp_path / "none.toml")).names("config", "none.toml", "cannot be read")


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("lease", "long", ("HALFMQ_LEASE is 'long'", "a number")),
        ("drain", "inf", ("drain must be a finite number",)),
        ("max_checks", "1.5", ("HALFMQ_MAX_CHECKS is '1.5'", "a whole number")),
        ("auto_create", "perhaps", ("HALFMQ_AUTO_CREATE is 'perhaps'", "true or false")),
        ("max_body_bytes", "999999999", ("max_body_bytes must be between",)),
    ],
)
def test_a_wrong_value_in_the_environment(database_file: str, setting: str, value: str, words: tuple[str, ...]) -> None:
    refused = run_serve("--database", database_file, **{f"HALFMQ_{setting.upper()}": value})
    refused.names(setting, *words)


def test_a_wrong_value_in_the_file(tmp_path: Path, database_file: str) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("[broker]\nmax_checks = 'many'\n")
    run_serve("--database", database_file, "--config", str(file)).names("max_checks", "'many'", "a whole number")


@pytest.mark.parametrize(
    ("options", "field", "words"),
    [
        (("--tls-key", "key.pem"), "tls_key", "tls_certificate and tls_key go together"),
        (("--tls-client-ca", "ca.pem"), "tls_client_ca", "needs tls_certificate and tls_key"),
        (("--tls-certificate", "chain.pem", "--tls-key", "key.pem"), "tls_certificate", "cannot be read"),
    ],
)
def test_half_of_tls(database_file: str, options: tuple[str, ...], field: str, words: str) -> None:
    run_serve("--database", database_file, *options).names(field, words)


def test_tls_files_that_hold_no_keys(tmp_path: Path, database_file: str) -> None:
    file = tmp_path / "chain.pem"
    file.write_text("not a certificate\n")
    run_serve("--database", database_file, "--tls-certificate", str(file), "--tls-key", str(file)).names(
        "tls_certificate", "chain.pem"
    )


def test_a_database_that_was_not_migrated(database_file: str) -> None:
    run_serve("--database", database_file, "--no-migrate").names("database", "halfmq migrate")
