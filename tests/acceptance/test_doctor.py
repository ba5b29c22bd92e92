"""`halfmq doctor` as monitoring runs it: what it writes, and its status."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from broker.storage.engine.connection import Database
from broker.storage.tables.schema import metadata
from support.certificates import Authority
from support.command import run

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from acceptance.client import Client
    from support.brokers import BrokerProcess
    from support.databases import AnyKind
    from support.shared_brokers import Brokers

OK, WARNING, CRITICAL, UNKNOWN = 0, 1, 2, 3


def doctor(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs it on a database; nothing that it writes has a password in it."""
    done = run("doctor", *arguments, variables={"HALFMQ_DATABASE": url} if url else {})
    assert "halfmq:halfmq" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def change(url: str, sql: str) -> None:
    """Changes the database behind the brokers' backs."""
    database = Database(url)
    session = database.session()
    session.begin()
    session.run(sql)
    session.commit()
    database.release(session)
    database.close()


@pytest.fixture
def own(kind: AnyKind, brokers: Brokers, new_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A broker on a database of its own."""
    return new_broker(brokers.database(kind))


def test_an_installation_with_nothing_wrong(own: BrokerProcess, kind: AnyKind) -> None:
    done = doctor(own.database, "--endpoint", own.endpoint)
    checks = 14 if kind == "sqlite" else 19
    assert (done.returncode, done.stdout, done.stderr) == (OK, f"{checks} of {checks} checks passed\n", "")
    told = doctor(own.database, "--endpoint", own.endpoint, "--verbose")
    assert f"OK endpoints: {own.endpoint} answers and serves.\n" in told.stdout
    assert f"OK tables: {len(metadata.tables)} tables and 3 views of version" in told.stdout
    assert told.returncode == OK


async def test_a_warning(own: BrokerProcess, connect: Callable[[BrokerProcess], Client]) -> None:
    client = connect(own)
    topic = await client.make_topic()
    await client.prepare("shop", topic, ["order"])
    change(own.database, "UPDATE half_message SET check_state = 3, check_due_at = NULL, parked_at = born_at")
    done = doctor(own.database)
    first, *_, last = done.stdout.splitlines()
    assert first.startswith("WARNING stuck-checks: 1 transaction is parked, the oldest for ")
    assert ". Remedy: find out in the producer's database whether" in first
    assert last.startswith("1 warning, ")
    assert done.returncode == WARNING
    assert doctor(own.database, "--skip", "stuck-checks").returncode == OK
    assert doctor(own.database, "--only", "clock", "--only", "tables").stdout == "2 of 2 checks passed\n"


def test_what_is_critical_decides_the_status_and_comes_first(own: BrokerProcess, kind: AnyKind) -> None:
    change(own.database, "DROP INDEX audit_time" + ("" if kind == "sqlite" else " ON audit_record"))
    change(own.database, "CREATE INDEX somebodys ON message (stored_at)")
    done = doctor(own.database, "--json")
    told: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode, told["exit_status"], told["status"], told["error"]) == (CRITICAL, 2, "CRITICAL", None)
    assert [each["severity"] for each in told["findings"]] == ["CRITICAL", "WARNING"]
    assert told["findings"][0] == {
        "check": "tables",
        "severity": "CRITICAL",
        "found": "there is no index audit_time of audit_record",
        "remedy": "CREATE INDEX audit_time ON audit_record (happened_at)",
    }
    passed = [each["check"] for each in told["passed"]]
    assert "tables" not in passed
    assert {"settings", "plans", "retention", "certificates"} <= set(passed)
    change(own.database, told["findings"][0]["remedy"])
    assert doctor(own.database).returncode == WARNING


# What it cannot look at


def test_no_check_passes_where_there_are_no_tables_to_look_at(own: BrokerProcess) -> None:
    done = doctor(own.database, "--table-prefix", "other_", "--only", "producers", "--only", "retention")
    first, second, summary = done.stdout.splitlines()
    assert first.startswith(
        "WARNING producers: cannot be looked at: the database has no tables of halfmq with the prefix"
    )
    assert second.startswith("WARNING retention: cannot be looked at: ")
    assert summary == "2 warning, 0 of 2 checks passed"
    assert done.returncode == WARNING
    everything = doctor(own.database, "--table-prefix", "other_")
    assert everything.stdout.count("no tables of halfmq") == 1
    assert everything.stdout.startswith("CRITICAL tables: the database has no tables of halfmq with the prefix other_")
    assert everything.returncode == CRITICAL
    assert doctor(own.database, "--table-prefix", "other_", "--skip", "tables").returncode == WARNING


def test_a_database_that_cannot_be_reached(own: BrokerProcess) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"mysql://halfmq:halfmq@127.0.0.1:{unused.getsockname()[1]}/halfmq"
    done = doctor(url, "--endpoint", own.endpoint)
    assert done.returncode == UNKNOWN
    assert "cannot be reached" in done.stderr
    assert done.stdout == "2 of 2 checks passed, the others could not be done\n"
    told = json.loads(doctor(url, "--json").stdout)
    assert (told["status"], told["exit_status"]) == ("UNKNOWN", UNKNOWN)
    assert "cannot be reached" in told["error"]


def test_a_file_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    file = tmp_path / "misspelt.db"
    done = doctor(f"sqlite:///{file}")
    assert (done.returncode, "There is no file" in done.stderr) == (UNKNOWN, True)
    assert not file.exists()


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("Dear broker, " * 1000)
    done = doctor(f"sqlite:///{tmp_path}/letter.txt")
    assert (done.returncode, "not a database" in done.stderr) == (UNKNOWN, True)


def test_wrong_arguments(tmp_path: Path) -> None:
    for arguments in (["--nonsense"], ["--config", str(tmp_path / "none.toml")]):
        done = doctor("", *arguments)
        assert (done.returncode, done.stdout) == (UNKNOWN, "")


# Brokers


def test_a_broker_that_does_not_answer(own: BrokerProcess) -> None:
    own.stop()
    done = doctor(own.database, "--only", "endpoints", "--endpoint", own.endpoint)
    assert done.returncode == CRITICAL
    assert done.stdout.startswith(f"CRITICAL endpoints: {own.endpoint} does not answer (UNAVAILABLE: ")
    assert "start the broker, or correct the address" in done.stdout


def test_certificates_near_their_end(
    kind: AnyKind, brokers: Brokers, new_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    authority = Authority.make(days=20.5)
    key, chain = authority.issue("broker", days=3.5)
    own_key, own_chain = authority.issue("monitor", days=90)
    files = {}
    for name, content in {"ca": authority.pem, "key": key, "chain": chain, "k": own_key, "c": own_chain}.items():
        files[name] = tmp_path / f"{name}.pem"
        files[name].write_bytes(content)
    tls = {"tls_certificate": files["chain"], "tls_key": files["key"], "tls_client_ca": files["ca"]}
    broker = new_broker(brokers.database(kind), **tls)
    config = tmp_path / "broker.toml"
    config.write_text("[broker]\n" + "".join(f'{name} = "{file}"\n' for name, file in tls.items()))
    checks = ("--only", "certificates", "--only", "endpoints", "--config", str(config), "--endpoint", broker.endpoint)
    known = ("--tls-ca", str(files["ca"]), "--tls-certificate", str(files["c"]), "--tls-key", str(files["k"]))
    done = doctor(broker.database, *checks, *known)
    file, shown, authority_of_clients, summary = done.stdout.splitlines()
    assert file.startswith(
        f"CRITICAL certificates: tls_certificate: the certificate in '{files['chain']}', of broker, ends in 3"
    )
    assert "Remedy: renew it and replace the file, with its key" in file
    assert shown.startswith(
        f"CRITICAL certificates: the certificate that {broker.endpoint} shows, of broker, ends in 3 days"
    )
    assert authority_of_clients.startswith("WARNING certificates: tls_client_ca: ")
    assert "of test authority, ends in 20 days" in authority_of_clients
    assert summary == "2 critical, 1 warning, 1 of 2 checks passed"
    assert done.returncode == CRITICAL
    # The broker refuses those who show none, and those who do not use TLS.
    for unknown, words in (
        ("--tls-ca", "--tls-certificate and --tls-key"),
        ("", "one with TLS needs --tls or --tls-ca"),
    ):
        refused = doctor(
            broker.database,
            *("--only", "endpoints", "--endpoint", broker.endpoint),
            *((unknown, str(files["ca"])) if unknown else ()),
        )
        assert refused.returncode == CRITICAL
        assert words in refused.stdout


def test_its_help_says_what_the_status_means() -> None:
    done = run("doctor", "--help", variables={"COLUMNS": "200", "TERM": "dumb"})
    assert done.returncode == OK
    text = " ".join(done.stdout.split())
    assert "0 nothing is wrong, 1 a warning, 2 something critical, 3 it could not look" in text
    assert "stuck-checks" in text
