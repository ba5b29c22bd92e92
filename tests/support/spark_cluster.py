"""A Spark cluster of its own: a master and workers as processes, each worker on an address of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from support.patience import HANG

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

HOSTS = ("127.0.0.1", "127.0.0.2")
PATIENCE = 120.0
# Java processes that live for seconds: compiling them well costs more than it gains, a third of the processor time.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def until(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Looks again and again until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class _Launched:
    """What Spark's own launcher started, and all that this started in turn: a session of processes."""

    def __init__(self, command: list[str], environment: dict[str, str], folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, env=environment, cwd=folder, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def await_log(self, pattern: str) -> str:
        """Waits until its log has this; what it found."""
        found: list[str] = []

        def said() -> bool:
            # Of whole lines: the last one may still be on its way.
            found[:] = re.findall(pattern, self.log.rpartition("\n")[0])
            return bool(found) or self.process.poll() is not None

        until(said, f"no {pattern} in the log")
        assert found, self.log
        return found[0]

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to all processes of the session: Python's worker processes lead groups of their own."""
        for process in self._session():
            try:
                os.kill(process, number)
            except ProcessLookupError:
                continue

    def end(self) -> None:
        """SIGKILL, until nobody is left."""
        while self._session() - {self.process.pid} or self.process.poll() is None:
            self.send(signal.SIGKILL)
            self.process.kill()
            time.sleep(0.02)

    def _session(self) -> set[int]:
        members = set()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            except (OSError, ValueError):
                continue
            if int(session) == self.process.pid and state != "Z":
                members.add(int(folder.name))
        return members


class SparkCluster:
    """A master, and a worker of one core on each of HOSTS; a context manager that ends them."""

    def __init__(self, folder: Path, python: Path) -> None:
        """Starts all of them, and waits until the workers are registered.

        Args:
            folder: Where logs and work go; made here.
            python: The folder of the interpreter that executors find as `python3`.
        """
        folder.mkdir()
        self._folder = folder
        self._launched: list[_Launched] = []
        try:
            self._master = self._launch("master.Master", HOSTS[0], python)
            self.url = self._master.await_log(r"Starting Spark master at (spark://\S+)")
            self.workers = {host: self._launch("worker.Worker", host, python, self.url) for host in HOSTS}
            for worker in self.workers.values():
                worker.await_log("Successfully registered with master")
        except BaseException:
            self.close()
            raise

    def _launch(self, part: str, host: str, python: Path, *arguments: str) -> _Launched:
        home = spark_home()
        name = f"{part.partition('.')[0]}-{host}"
        environment = {
            "PATH": os.pathsep.join([str(python), *_system_path()]),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(self._folder / f"{name}-scratch"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
            "SPARK_LAUNCHER_OPTS": JAVA_OPTIONS,
        }
        if "JAVA_HOME" in os.environ:
            environment["JAVA_HOME"] = os.environ["JAVA_HOME"]
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{part}", "--host", host]
        command += ["--port", "0", "--webui-port", "0"]
        if arguments:
            command += ["--cores", "1", "--memory", "600m", "--work-dir", str(self._folder / f"{name}-work")]
        launched = _Launched([*command, *arguments], environment, self._folder / name)
        self._launched.append(launched)
        return launched

    def close(self) -> None:
        """Ends all of its processes."""
        for launched in self._launched:
            launched.end()

    def __enter__(self) -> Self:
        """Runs already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends it; where all went well, what executors unpacked goes too."""
        self.close()
        if kind is None:
            shutil.rmtree(self._folder)


class Submitted:
    """A driver that spark-submit runs on this machine; a context manager that ends it."""

    def __init__(self, cluster: SparkCluster, folder: Path, *arguments: str) -> None:
        """Starts it.

        Args:
            cluster: Where its tasks run.
            folder: The driver's working directory.
            arguments: Further options of spark-submit, the script, and its arguments.
        """
        settings = {
            "spark.ui.port": "0",
            "spark.driver.host": HOSTS[0],
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            # Nothing begins before both executors are there.
            "spark.cores.max": str(len(HOSTS)),
            "spark.scheduler.minRegisteredResourcesRatio": "1",
            "spark.driver.extraJavaOptions": JAVA_OPTIONS,
            "spark.executor.extraJavaOptions": JAVA_OPTIONS,
        }
        submit = [str(spark_home() / "bin" / "spark-submit"), "--master", cluster.url]
        for name, value in settings.items():
            submit += ["--conf", f"{name}={value}"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
        environment |= {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "SPARK_LOCAL_IP": HOSTS[0],
            "SPARK_LOCAL_DIRS": str(folder / "scratch"),
            "SPARK_LAUNCHER_OPTS": JAVA_OPTIONS,
        }
        self._launched = _Launched([*submit, *arguments], environment, folder)

    def await_log(self, pattern: str) -> str:
        """Waits until it said this; what it said."""
        return self._launched.await_log(pattern)

    def executors(self, address: str) -> dict[str, dict[str, Any]]:
        """What Spark's REST interface at this address knows of its executors, by host."""
        found = self._asked(address, "allexecutors")
        return {each["hostPort"].partition(":")[0]: each for each in found if each["id"] != "driver"}

    def hosts_of(self, address: str, description: str) -> set[str]:
        """The hosts that ran tasks of jobs with this description."""
        stages = [each for each in self._asked(address, "stages") if each.get("description") == description]
        tasks = [task for each in stages for task in self._asked(address, f"stages/{each['stageId']}/0/taskList")]
        return {task["host"] for task in tasks if task["status"] == "SUCCESS"}

    @staticmethod
    def _asked(address: str, what: str) -> list[dict[str, Any]]:
        applications = f"{address}/api/v1/applications"
        with urllib.request.urlopen(applications, timeout=30) as answer:
            (application,) = json.load(answer)
        with urllib.request.urlopen(f"{applications}/{application['id']}/{what}", timeout=30) as answer:
            found: list[dict[str, Any]] = json.load(answer)
        return found

    def finish(self) -> str:
        """Waits for its end; what it said."""
        status = self._launched.process.wait(timeout=HANG)
        assert status == 0, self._launched.log
        return self._launched.log

    def __enter__(self) -> Self:
        """Runs already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends it in whatever state it is."""
        self._launched.end()


def spark_home() -> Path:
    """Where pip put Spark."""
    import pyspark

    return Path(str(pyspark.__file__)).parent


def _system_path() -> list[str]:
    java = shutil.which("java")
    assert java is not None
    return [str(Path(java).parent), "/usr/bin", "/bin"]
