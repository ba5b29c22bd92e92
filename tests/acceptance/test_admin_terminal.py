"""`halfmq admin` where people and scripts meet it: on a terminal, in a pipe, in a shell that completes it."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from support.admin_command import CHECKOUT, AdminCommand, environment
from support.brokers import BrokerProcess
from support.patience import HANG

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECONDS = 30


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(f"sqlite:///{tmp_path_factory.mktemp('broker') / 'try.db'}") as running:
        yield running


@pytest.fixture(scope="module")
def admin(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> AdminCommand:
    made = AdminCommand(broker.endpoint, tmp_path_factory.mktemp("contexts"))
    for topic in ("orders", "ordinary", "refunds"):
        made.done("topic", "create", topic, "--queues", 1)
    made.done("group", "create", "shipping")
    return made


def test_a_terminal_shows_a_table_and_nothing_that_clients_sent_moves_its_cursor(admin: AdminCommand) -> None:
    admin.done("topic", "create", "evil", "--queues", 1)
    admin.done("message", "send", "evil", "--body", "[bold]red[/bold]\n\u202etxt", "--property", "a=[red]x")
    admin.done("message", "send", "evil", "--body", "\x1b[2J\x1b]0;x\x07", "--tag", "[link=x]")
    text, binary = admin.found("message", "find", "evil")
    for command, word in (
        (("message", "find", "evil"), "[link=x]"),
        (("message", "find", "evil"), "[bold]red[/bold]\\n?txt"),
        (("message", "show", text["message_id"]), "[red]x"),
        (("message", "show", binary["message_id"]), "1b 5b 32 4a"),
    ):
        with admin.on_terminal(*command) as terminal:
            assert terminal.end() == 0
        assert word in terminal.text
        for evil in ("\x1b[2J", "\x1b]", "\x07", "\u202e"):
            assert evil not in terminal.raw
        piped = admin.done(*command)
        assert "\x1b" not in piped.output
    assert admin.done("message", "find", "evil", "--json").output.isascii()


def test_watching_looks_again_until_ctrl_c(admin: AdminCommand) -> None:
    with admin.on_terminal("topic", "list", "--watch", "--every", "0.2") as terminal:
        terminal.await_text("orders", "every 0.2s, Ctrl-C ends")
        admin.done("topic", "create", "watched")
        terminal.await_text("watched")
        terminal.interrupt()
        assert terminal.end() == 0
    assert "Traceback" not in terminal.text


def test_watching_with_json_prints_a_document_each_time(admin: AdminCommand) -> None:
    with admin.started("topic", "list", "--json", "--every", "0.2") as process:
        assert process.stdout is not None
        documents = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0
    for document in documents:
        assert document["at"].endswith("Z")
        assert "orders" in {topic["name"] for topic in document["items"]}
    assert documents[0]["at"] < documents[1]["at"]


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 4), ("", 4)], ids=["yes", "no", "nothing"])
def test_what_cannot_be_undone_is_asked_on_a_terminal(admin: AdminCommand, answer: str, status: int) -> None:
    admin.done("topic", "create", "doomed", "--exist-ok")
    with admin.on_terminal("topic", "delete", "doomed") as terminal:
        terminal.await_text("delete topic doomed and all of its messages? [y/N]")
        terminal.enter(f"{answer}\n")
        assert terminal.end() == status
    assert ("doomed" in {each["name"] for each in admin.found("topic", "list")}) == bool(status)
    assert ("deleted topic doomed" if status == 0 else "given up; nothing was changed") in terminal.text


def test_ctrl_c_at_a_question_changes_nothing(admin: AdminCommand) -> None:
    admin.done("topic", "create", "kept", "--exist-ok")
    with admin.on_terminal("topic", "delete", "kept") as terminal:
        terminal.await_text("delete topic kept and all of its messages? [y/N]")
        terminal.interrupt()
        assert terminal.end() == 130
    assert "Traceback" not in terminal.text
    assert "kept" in {each["name"] for each in admin.found("topic", "list")}


def test_a_filter_is_shown_and_asked_for_on_a_terminal(admin: AdminCommand) -> None:
    for _ in range(2):
        admin.done("message", "send", "orders", "--body", "x", "--half", "g-asked")
    with admin.on_terminal("tx", "rollback", "--group", "g-asked", "--reason", "a test") as terminal:
        terminal.await_text("transactions that match at", ": 2, for example", "roll back these 2? [y/N]")
        terminal.enter("y\n")
        assert terminal.end() == 0
    assert "2 of 2" in terminal.text
    assert "resolved 2 of 2" in terminal.text


def test_tail_follows_new_queues_and_ends_with_ctrl_c(admin: AdminCommand) -> None:
    admin.done("topic", "create", "live", "--queues", 1)
    with admin.started("message", "tail", "live", "--json") as process:
        assert process.stdout is not None
        seen: set[int] = set()
        until = time.monotonic() + SECONDS
        changed = False
        while len(seen) < 2:
            assert time.monotonic() < until, seen
            admin.done("message", "send", "live", "--body", "x")
            while select.select([process.stdout], [], [], 0.2)[0]:
                seen.add(json.loads(process.stdout.readline())["queue"])
            if seen and not changed:
                admin.done("topic", "update", "live", "--queues", 2)
                changed = True
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_tail_waits_for_a_broker_that_is_started_again(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'try.db'}"
    with BrokerProcess(database) as first:
        listen = first.endpoint
        admin = AdminCommand(listen, tmp_path)
        admin.done("topic", "create", "orders")
        process = admin.started("message", "tail", "orders", "--from", "earliest", "--timeout", 1)
        assert process.stdout is not None
        assert process.stderr is not None
        admin.done("message", "send", "orders", "--body", "one")
        assert process.stdout.readline().split()[-1] == "one"
    with process:
        assert "no broker answered in time" in process.stderr.readline()
        with BrokerProcess(database, listen=listen):
            admin.done("message", "send", "orders", "--body", "two")
            assert process.stdout.readline().split()[-1] == "two"
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0


@pytest.mark.parametrize("follows", [True, False], ids=["waiting", "printing"])
def test_a_reader_that_is_gone_ends_it_quietly(admin: AdminCommand, follows: bool) -> None:
    arguments = ("message", "tail", "refunds") if follows else ("topic", "list", "--every", "0.2")
    with admin.started(*arguments) as process:
        assert process.stdout is not None
        if not follows:
            process.stdout.readline()
        process.stdout.close()
        assert process.wait(SECONDS) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_without_a_broker_it_ends_soon_with_a_status_of_its_own(tmp_path: Path) -> None:
    began = time.monotonic()
    AdminCommand("127.0.0.1:1", tmp_path)("topic", "list", "--timeout", 1).refused(3, "127.0.0.1:1", "--timeout")
    assert time.monotonic() - began < 10


def test_the_help_tells_the_statuses(admin: AdminCommand) -> None:
    told = " ".join(admin.done("--help").output.split())
    for part in ("0 done", "1 refused", "2 wrong usage", "3 no broker answered", "4 given up"):
        assert part in told, part


def installed(folder: Path) -> Path:
    """The command as an installation has it, in this folder."""
    command = folder / "halfmq"
    command.write_text(f"#!{sys.executable}\nfrom halfmq_cli import main\n\nmain()\n")
    command.chmod(0o755)
    return command


def script_of(command: Path, variables: dict[str, str], shell: str) -> str:
    """The script that completes the command in a shell."""
    done = subprocess.run(
        [command, "--show-completion", shell],
        env={**variables, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Shell:
    """Bash on a terminal, with the completion that `halfmq --show-completion` prints."""

    def __init__(self, admin: AdminCommand, folder: Path) -> None:
        variables = environment(admin.variables)
        variables |= {"PATH": f"{folder}:{variables['PATH']}", "TERM": "dumb", "PS1": "$ ", "HISTFILE": "/dev/null"}
        (folder / "completion").write_text(script_of(installed(folder), variables, "bash"))
        self._terminal, its = pty.openpty()
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            stdin=its,
            stdout=its,
            stderr=its,
            env=variables,
            cwd=CHECKOUT,
            start_new_session=True,
        )
        os.close(its)
        self.write(
            "bind 'set enable-bracketed-paste off'; bind 'set show-all-if-ambiguous on'; "
            f". {folder}/completion; echo rea''dy\n"
        )
        self.until("ready")

    def write(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def until(self, *words: str) -> str:
        """What was shown since, once all of these were."""
        text, end = "", time.monotonic() + SECONDS
        while not all(word in text for word in words):
            assert time.monotonic() < end, text
            if select.select([self._terminal], [], [], 1)[0]:
                text += os.read(self._terminal, 4096).decode(errors="replace")
        return text

    def close(self) -> None:
        self._process.kill()
        self._process.wait(SECONDS)
        os.close(self._terminal)


@pytest.fixture(scope="module")
def shell(admin: AdminCommand, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    made = Shell(admin, tmp_path_factory.mktemp("shell"))
    yield made
    made.close()


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("halfmq adm", "admin "),
        ("halfmq admin mess", "message "),
        ("halfmq admin tx roll", "rollback "),
        ("halfmq admin tx list --park", "--parked "),
        ("halfmq admin topic show ref", "refunds "),
        ("halfmq admin group pause ship", "shipping "),
        ("halfmq admin lag --topic ref", "refunds "),
        ("halfmq pipel", "pipeline "),
    ],
    ids=lambda part: part.removeprefix("halfmq ").replace(" ", "-"),
)
def test_bash_completes_commands_options_and_names_of_the_broker(shell: Shell, typed: str, completed: str) -> None:
    shell.write(f"{typed}\t")
    shell.until(completed)
    shell.write("\x15")  # Ctrl-U: forgets the line


def test_bash_shows_what_there_is_to_choose_from(shell: Shell) -> None:
    shell.write("halfmq admin topic show ord\t")
    shell.until("orders", "ordinary")
    shell.write("\x15")


@pytest.mark.parametrize(("shell_name", "word"), [("zsh", "compdef"), ("fish", "complete ")], ids=["zsh", "fish"])
def test_other_shells_have_their_script(admin: AdminCommand, tmp_path: Path, shell_name: str, word: str) -> None:
    assert word in script_of(installed(tmp_path), environment(admin.variables), shell_name)
