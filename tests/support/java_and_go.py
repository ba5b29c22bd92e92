"""RocketMQ's official clients for Java and Go, in processes of their own: built if need be, and driven from tests."""

from __future__ import annotations

import hashlib
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

import pytest

from support.databases import in_ci

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

Language: TypeAlias = Literal["java", "go"]

JAVA_CLIENT, JAVA_AGENT = "5.2.0", "2.10.0"
# The client needs a newer Go than Debian has, and Go's own module proxy has it.
GO_NEEDED, GO_TOOLCHAIN = (1, 24), "golang.org/toolchain@v0.0.1-go1.24.5.linux-amd64"
PATIENCE = 60.0

_SOURCES = Path(__file__).parents[1] / "gateway" / "official"
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>halfmq</groupId><artifactId>client</artifactId><version>1</version>
<dependencies><dependency>
<groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-client-java</artifactId><version>{JAVA_CLIENT}</version>
</dependency></dependencies></project>
"""


class Absent(Exception):
    """A client cannot be had here."""


def install(language: Language) -> list[str]:
    """The command that runs a client; builds it where it was not yet.

    Raises:
        Absent: what builds it is missing, or cannot fetch it.
    """
    cache = _cache()
    content = b"".join(file.read_bytes() for file in sorted(_SOURCES.iterdir())) + _POM.encode() + GO_TOOLCHAIN.encode()
    wanted = cache / f"{language}-{hashlib.sha256(content).hexdigest()[:16]}"
    if not wanted.exists():
        cache.mkdir(parents=True, exist_ok=True)
        # Only what is whole gets its name: others may build it at the same time, or be stopped half way.
        with tempfile.TemporaryDirectory(dir=cache, prefix="new-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            (_build_java if language == "java" else _build_go)(folder)
            with suppress(OSError):  # it is there by now
                folder.rename(wanted)
                folder.mkdir()  # for whoever removes it
    if language == "java":
        return ["java", "-cp", f"{wanted}/lib/*:{wanted}/classes", "Client"]
    return [str(wanted / "client")]


def _build_java(folder: Path) -> None:
    _need("mvn", "javac")
    (folder / "pom.xml").write_text(_POM)
    _run(["mvn", "--quiet", "--batch-mode", "dependency:copy-dependencies", f"-DoutputDirectory={folder}/lib"], folder)
    _run(["javac", "-cp", f"{folder}/lib/*", "-d", f"{folder}/classes", str(_SOURCES / "Client.java")], folder)


def _build_go(folder: Path) -> None:
    _need("go")
    for name in ("go.mod", "client.go"):
        shutil.copy(_SOURCES / name, folder)
    go, variables = "go", {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod"}
    found = re.search(r"go(\d+)\.(\d+)", _run(["go", "version"], folder))
    if found is None or (int(found[1]), int(found[2])) < GO_NEEDED:
        toolchain = _newer_go(folder, variables)
        go, variables = f"{toolchain}/bin/go", {**variables, "GOROOT": str(toolchain)}
    _run([go, "build", "-o", "client", "."], folder, variables)


def _newer_go(folder: Path, variables: dict[str, str]) -> Path:
    """Unpacks a newer Go beside the client."""
    (folder / "fetched").mkdir()
    (folder / "fetched" / "go.mod").write_text("module fetched\n")
    told = _run(["go", "mod", "download", "-json", GO_TOOLCHAIN], folder / "fetched", variables)
    archive = re.search(r'"Zip": "([^"]+)"', told)
    if archive is None:
        raise Absent(f"go did not say where it put {GO_TOOLCHAIN}: {told}")
    with zipfile.ZipFile(archive[1]) as packed:
        packed.extractall(folder / "fetched")
    toolchain = folder / "fetched" / GO_TOOLCHAIN
    for file in [*(toolchain / "bin").iterdir(), *(toolchain / "pkg" / "tool").rglob("*")]:
        file.chmod(0o755)
    return toolchain


def _need(*programs: str) -> None:
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        raise Absent(f"there is no {' and no '.join(missing)}")


def _run(command: Sequence[str], folder: Path, variables: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=600,
    )
    if done.returncode != 0:
        raise Absent(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


@lru_cache
def command_of(language: Language) -> list[str]:
    """As `install`; without the client the test is skipped, in CI it fails."""
    try:
        return install(language)
    except Absent as absent:
        if in_ci():
            pytest.fail(f"needs RocketMQ's client for {language}: {absent}", pytrace=False)
        pytest.skip(f"needs RocketMQ's client for {language}: {absent}")


@lru_cache
def tracing_agent() -> str:
    """As `install_agent`; without the agent the test is skipped, in CI it fails."""
    try:
        return install_agent()
    except Absent as absent:
        if in_ci():
            pytest.fail(f"needs OpenTelemetry's agent for Java: {absent}", pytrace=False)
        pytest.skip(f"needs OpenTelemetry's agent for Java: {absent}")


def install_agent() -> str:
    """The file of OpenTelemetry's agent for Java, which traces RocketMQ's client; fetched where it is not here yet.

    Raises:
        Absent: what fetches it is missing, or cannot.
    """
    cache = _cache()
    wanted = cache / f"opentelemetry-javaagent-{JAVA_AGENT}.jar"
    if not wanted.exists():
        _need("mvn")
        artifact = f"-Dartifact=io.opentelemetry.javaagent:opentelemetry-javaagent:{JAVA_AGENT}"
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="new-", ignore_cleanup_errors=True) as name:
            command = ["mvn", "--quiet", "--batch-mode", "dependency:copy", artifact, f"-DoutputDirectory={name}"]
            _run(command, Path(name))
            (Path(name) / wanted.name).replace(wanted)
    return str(wanted)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "halfmq" / "official"


class ClientFailed(Exception):
    """A call of the client ended with an error; its own words."""


class OfficialProcess:
    """A process in which clients of one language run; a context manager that ends it."""

    def __init__(self, language: Language, *, tls: bool = False, variables: Mapping[str, str] | None = None) -> None:
        """Starts it, with further variables of its environment; both take any certificate where they speak TLS."""
        # The clients write logs into the user's home.
        self._home = tempfile.TemporaryDirectory(prefix="halfmq-official-", ignore_cleanup_errors=True)
        self._language = language
        self._process = subprocess.Popen(
            [*command_of(language), "tls" if tls else "plain"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={
                "PATH": os.environ["PATH"],
                "HOME": self._home.name,
                "rocketmq.client.logRoot": self._home.name,
                **(variables or {}),
            },
        )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line.rstrip("\n"))
        self._answers.put("")

    def _ask(self, *words: str, seconds: float = PATIENCE) -> list[str]:
        assert self._process.stdin is not None
        self._process.stdin.write("\t".join(words) + "\n")
        self._process.stdin.flush()
        try:
            kind, *answer = self._answers.get(timeout=seconds).split("\t")
        except queue.Empty:
            pytest.fail(f"the client for {self._language} did not answer within {seconds} s: {words}", pytrace=False)
        if kind != "ok":
            raise ClientFailed(answer[0] if answer else f"the process of the client for {self._language} ended")
        return [each for each in answer if each]

    def producer(self, name: str, endpoints: str, *topics: str, verdict: str = "") -> None:
        """Makes a producer; `verdict`: COMMIT, ROLLBACK or UNKNOWN, when it is asked about a transaction."""
        self._ask("producer", name, endpoints, ",".join(topics), verdict)

    def consumer(self, name: str, endpoints: str, group: str, topic: str) -> None:
        """Makes a consumer that asks for messages, and acknowledges each."""
        self._ask("consumer", name, endpoints, group, topic)

    def push_consumer(self, name: str, endpoints: str, group: str, topic: str) -> None:
        """Makes a consumer with a listener, which handles each message; Java's alone."""
        self._ask("push", name, endpoints, group, topic)

    def pushed(self, name: str) -> str:
        """What such a listener handled next."""
        (body,) = self._ask("pushed", name, seconds=70)
        return body

    def send(self, name: str, topic: str, body: str, group: str = "") -> str:
        """Sends a message, in the order of its message group where one is named; its id."""
        return self._ask("send", name, topic, body, group)[0]

    def transact(self, name: str, topic: str, body: str, verdict: str = "") -> str:
        """Sends a half message, and COMMIT or ROLLBACK after it, or nothing; the id of the message."""
        return self._ask("transact", name, topic, body, verdict)[0]

    def receive_once(self, name: str, most: int) -> list[str]:
        """Receives once; up to so many bodies."""
        return self._ask("receive", name, str(most))

    def receive(self, name: str, wanted: int, until: Callable[[], bool] = lambda: False) -> list[str]:
        """Receives until so many messages are here; the bodies, in the order in which they came."""
        bodies: list[str] = []
        for _ in range(30):
            with suppress(ClientFailed):  # A broker that was killed meanwhile.
                bodies += self.receive_once(name, min(32, max(1, wanted - len(bodies))))
            if len(bodies) >= wanted or until():
                break
        return bodies

    def __enter__(self) -> Self:
        """Is running already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait(30)
        self._reader.join(30)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # What was not written yet.
                    pipe.close()
        self._home.cleanup()


if __name__ == "__main__":
    try:
        for each in ("java", "go"):
            install(each)
        install_agent()
    except Absent as absence:
        sys.exit(str(absence))
