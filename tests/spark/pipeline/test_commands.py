"""`halfmq pipeline`: the commands as users type them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from halfmq_cli.commands import app
from support.spark import arrived

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from producer_sdk import Admin
    from support.brokers import BrokerProcess


@pytest.fixture
def pipeline(spark: SparkSession, broker: BrokerProcess) -> Callable[..., str]:
    """Runs a command; what it prints."""

    def run(*arguments: str, status: int = 0) -> str:
        result = CliRunner().invoke(app, ["pipeline", *arguments, f"--endpoint={broker.endpoint}"])
        assert result.exit_code == status, result.output
        return result.stdout if status == 0 else result.stderr

    return run


def test_a_topic_is_archived_replayed_and_condensed(
    pipeline: Callable[..., str],
    broker: BrokerProcess,
    topic: str,
    admin: Admin,
    send: Callable[..., None],
    tmp_path: Path,
) -> None:
    for start in range(0, 400, 50):
        send(topic, range(start, start + 50))
    again, figures = f"{topic}-again", f"{topic}-figures"
    admin.create_topic(again)
    admin.create_topic(figures)
    folder = f"--folder={tmp_path / 'archive'}"
    assert pipeline("archive", folder, f"--topic={topic}").startswith("archived 400 messages in 4 files, ")
    assert pipeline("archive", folder, "--topic-pattern=" + topic).startswith("archived 0 messages in 0 files, ")
    command = ("replay", folder, f"--topic={topic}", f"--into={again}", f"--name={topic}", "--messages-per-part=150")
    assert pipeline(*command, "--since=2020-01-01T00:00:00Z") == "replayed 400 messages in 3 parts\n"
    assert pipeline(*command, "--since=2020-01-01T00:00:00Z") == "replayed 0 messages in 0 parts\n"
    assert arrived(broker.endpoint, again) == dict.fromkeys(range(400), 1)
    condensing = [
        "aggregate",
        f"--topic={topic}",
        f"--into={figures}",
        f"--name={figures}",
        f"--checkpoint={tmp_path / 'checkpoint'}",
        "--columns=no_field string",
        "--time=timestamp",
        "--figure=count(*) AS messages",
        "--window=1 day",
        "--mode=update",
    ]
    # Its messages are numbers, no objects.
    said = pipeline(*condensing, status=1)
    assert "is no JSON object" in said.splitlines()[-1]
    assert "Traceback" not in said
    assert pipeline(*condensing, "--skip-malformed") == "took in 400 messages in 1 micro-batches\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["archive", "--folder=x"],
            "halfmq pipeline archive: name what to read by one of topic, topics, topicPattern and",
        ),
        (["archive", "--folder=x", "--topic=none", "--start=soon"], "startingTimestamp 'soon' is no time"),
        (["archive", "--folder=x", "--topic=none", "--conf=y"], "--conf 'y' has no value; write it as name=value"),
        (["archive", "--folder=x", "--topic=no-such"], "no-such"),
        (["replay", "--folder=x", "--topic=a", "--into=no-such", "--name=n"], "no-such"),
    ],
)
def test_what_cannot_be_is_one_line(pipeline: Callable[..., str], arguments: list[str], words: str) -> None:
    said = pipeline(*arguments, status=1).strip()
    assert words in said
    assert len(said.splitlines()) == 1
