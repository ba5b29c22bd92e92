"""`halfmq health`: with TLS, without a broker, and what it does not need for its answer."""

from __future__ import annotations

import ast
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from support.certificates import Authority
from support.command import run
from support.patience import HANG

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.brokers import BrokerProcess


@pytest.fixture
def files(tmp_path: Path) -> Callable[[str, bytes], str]:
    def write(name: str, content: bytes) -> str:
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o600)
        return str(tmp_path / name)

    return write


def test_it_tells_in_a_line_and_by_its_status(new_broker: Callable[..., BrokerProcess]) -> None:
    broker = new_broker("sqlite")
    for options in ([], ["--ready"]):
        asked = run("health", "--endpoint", broker.endpoint, *options)
        assert (asked.returncode, asked.stdout, asked.stderr) == (0, f"{broker.endpoint}: SERVING\n", "")
    broker.stop()
    asked = run("health", variables={"HALFMQ_ENDPOINT": broker.endpoint})
    assert asked.returncode == 1
    assert asked.stdout.startswith(f"{broker.endpoint}: UNAVAILABLE")
    assert asked.stderr == ""


def test_it_waits_for_a_broker_that_starts(new_broker: Callable[..., BrokerProcess]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    with ThreadPoolExecutor(1) as waiting:
        asked = waiting.submit(run, "health", "--ready", "--endpoint", endpoint, "--timeout=1", "--wait=50")
        new_broker("sqlite", listen=endpoint)
        assert asked.result().returncode == 0


def test_with_tls_and_a_certificate_of_its_own(
    new_broker: Callable[..., BrokerProcess], files: Callable[[str, bytes], str]
) -> None:
    authority = Authority.make()
    key, chain = authority.issue("broker")
    client_key, client_chain = authority.issue("probe")
    ca = files("ca.pem", authority.pem)
    broker = new_broker(
        "sqlite",
        tls_certificate=files("chain.pem", chain),
        tls_key=files("key.pem", key),
        tls_client_ca=ca,
        access=True,
        access_certificates=True,
    )
    shown = ["--tls-certificate", files("c.pem", client_chain), "--tls-key", files("k.pem", client_key)]
    trusted = ["--endpoint", broker.endpoint, "--tls-ca", ca]
    assert run("health", "--ready", *trusted, *shown).returncode == 0
    assert run("health", "--ready", *trusted, "--timeout=1").returncode == 1
    assert run("health", "--ready", "--endpoint", broker.endpoint, "--timeout=1").returncode == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tls-ca", "/no/such/file"], "/no/such/file"),
        (["--tls-key", "{key}"], "client_certificate"),
        (["--tls-ca", "{empty}"], "root_certificates"),
    ],
    ids=["no file", "half a pair", "no PEM"],
)
def test_wrong_options_are_not_taken_for_an_answer(
    options: list[str], said: str, files: Callable[[str, bytes], str]
) -> None:
    named = {"key": files("key.pem", Authority.make().issue("probe")[0]), "empty": files("empty.pem", b"")}
    refused = run("health", *[option.format(**named) for option in options])
    assert refused.returncode == 2
    assert said in refused.stderr


def test_it_loads_neither_broker_nor_database() -> None:
    """It is run every few seconds in each container."""
    program = (
        "import sys; sys.argv = ['halfmq', 'health', '--endpoint=127.0.0.1:1', '--timeout=0.1']\n"
        "from halfmq_cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 1\n"
        "print(sorted({name.split('.')[0] for name in sys.modules}))"
    )
    loaded = run_python(program)
    assert "grpc" in loaded
    assert not {"sqlalchemy", "alembic", "pymysql", "broker", "producer_sdk", "consumer_sdk"} & set(loaded)


def run_python(program: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=HANG)
    found: list[str] = ast.literal_eval(done.stdout.splitlines()[-1])
    return found
