"""RocketMQ's generated modules are loaded without the client around them, which writes to the user's home."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[3]
LOAD = "from broker.rocketmq.protocol import definition_pb2, service_pb2, service_pb2_grpc"
CLIENT = "import rocketmq; rocketmq.Producer, rocketmq.SimpleConsumer"
# Takes a package away as if it was not installed, or puts another one in its place.
WITHOUT = """
import sys
class Without:
    def __init__(self, finder): self.finder = finder
    def __getattr__(self, name): return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] == "rocketmq" else self.finder.find_spec(name, path, target)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""
SERVE = """
import sys
from halfmq_cli import main
sys.argv = ["halfmq", "serve", "--listen=127.0.0.1:0", "--rocketmq", "--database=sqlite:///{file}"]
main()
"""


def run(home: Path, *lines: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """Runs lines of Python in a process of their own, whose home this is."""
    environment = {**os.environ, "HOME": str(home), "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        check=False,
        cwd=CHECKOUT,
        env=environment,
        timeout=120,
    )


def works(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr


def test_loading_touches_no_home_and_leaves_the_client_alone(tmp_path: Path) -> None:
    lines = (
        LOAD,
        "import sys",
        "print(*sorted(name for name in sys.modules if name.split('.')[0] in ('rocketmq', 'opentelemetry')))",
    )
    done = run(tmp_path, *lines)
    works(done)
    modules = ["definition_pb2", "service_pb2", "service_pb2_grpc"]
    assert done.stdout.split() == [f"rocketmq.grpc_protocol.{name}" for name in modules]
    assert list(tmp_path.iterdir()) == []


def test_loading_works_where_nothing_can_be_written_to_the_home(tmp_path: Path) -> None:
    # A file where the folder should be: not even root can make anything in it.
    home = tmp_path / "home"
    home.touch()
    works(run(home, LOAD))
    assert run(home, CLIENT).returncode != 0, "the client writes to the home no more; loading it could be simpler"


@pytest.mark.parametrize("lines", [(LOAD, CLIENT), (CLIENT, LOAD)], ids=["protocol first", "client first"])
def test_the_client_works_in_the_same_process(tmp_path: Path, lines: tuple[str, str]) -> None:
    same = (
        "from rocketmq.grpc_protocol import definition_pb2 as messages, service_pb2 as others",
        "assert others is service_pb2",
        "assert messages.Message is definition_pb2.Message",
    )
    works(run(tmp_path, *lines, *same))


def test_without_the_package_it_says_what_to_install(tmp_path: Path) -> None:
    caught = (
        WITHOUT,
        "from broker.errors import ConfigurationError",
        f"try:\n    {LOAD}",
        "except ConfigurationError as error:\n    print(error.field, error.message)",
    )
    done = run(tmp_path, *caught)
    works(done)
    assert done.stdout.startswith("rocketmq ")
    assert "pip install 'halfmq[rocketmq]'" in done.stdout


def test_a_broker_without_the_package_refuses_the_gateway_in_one_line_and_works_without_it(tmp_path: Path) -> None:
    done = run(tmp_path, WITHOUT, SERVE.format(file=tmp_path / "halfmq.db"))
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("halfmq:")]
    assert line.startswith("halfmq: rocketmq: ")
    assert "halfmq[rocketmq]" in line
    assert "Traceback" not in done.stderr
    works(run(tmp_path, WITHOUT, "import broker.app, halfmq_cli.serve"))


def test_another_package_of_this_name_is_told_from_it(tmp_path: Path) -> None:
    other = tmp_path / "packages" / "rocketmq"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("")
    done = run(tmp_path, SERVE.format(file=tmp_path / "halfmq.db"), path=str(other.parent))
    assert done.returncode == 2, done.stderr
    assert "halfmq: rocketmq: " in done.stderr
    assert "halfmq[rocketmq]" in done.stderr
    assert "Traceback" not in done.stderr
