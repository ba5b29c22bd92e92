"""What deploy/systemd starts, with the protections that a test can give it without systemd."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from support.command import run
from support.databases import create_database, drop_database, server_url
from support.deployment import CHECKOUT, DEPLOY

if TYPE_CHECKING:
    from pathlib import Path

UNIT = (DEPLOY / "systemd" / "halfmq.service").read_text()
PR_SET_NO_NEW_PRIVS = 38
PR_SET_MDWE = 65
PROTECTED = {"NoNewPrivileges=yes": PR_SET_NO_NEW_PRIVS, "MemoryDenyWriteExecute=yes": PR_SET_MDWE}


def setting(name: str) -> str:
    (found,) = re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)
    return str(found)


def protected() -> str:
    """A program that runs the command as the unit says; kernels before 6.3 refuse the second, and go on without it."""
    assert all(line in UNIT for line in PROTECTED)
    return (
        "import ctypes, os\n"
        f"for option in {list(PROTECTED.values())}: ctypes.CDLL(None).prctl(option, 1, 0, 0, 0)\n"
        f"os.umask(0o{setting('UMask')})\n"
        "from halfmq_cli import main\n"
        "main()\n"
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_a_broker_runs_without_writable_code_and_drains(workers: int, tmp_path: Path) -> None:
    url = create_database(server_url("mariadb"))
    (tmp_path / "database").write_text(f"{url}\n")
    (tmp_path / "database").chmod(0o400)
    named = setting("ExecStart").replace("${CREDENTIALS_DIRECTORY}", str(tmp_path))
    named = named.replace("/etc/halfmq/halfmq.toml", str(DEPLOY / "systemd" / "halfmq.toml"))
    here = ["--listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0", f"--workers={workers}", "--drain=1"]
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.settimeout(60)
    environment = {
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{CHECKOUT}:{CHECKOUT / 'proto' / 'gen'}",
    }
    with subprocess.Popen(
        [sys.executable, "-c", protected(), *named.split()[1:], *here],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as broker:
        try:
            assert broker.stdout is not None
            assert setting("Type") == "notify"
            assert manager.recv(1000) == b"READY=1"
            endpoint = broker.stdout.readline().strip()
            assert run("health", "--ready", f"--endpoint={endpoint}").returncode == 0
        finally:
            broker.send_signal(getattr(signal, setting("KillSignal")))
            _, log = broker.communicate(timeout=float(setting("TimeoutStopSec")))
    assert broker.returncode == 0, log
    assert "password" not in log
    manager.close()
    drop_database(url)
