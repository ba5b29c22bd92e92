"""`halfmq migrate`: an empty database becomes one a broker can serve from, and stays as it is when migrated again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from broker.storage.migrations import newest
from support.patience import HANG

if TYPE_CHECKING:
    from collections.abc import Callable

    from acceptance.client import Client
    from support.brokers import BrokerProcess
    from support.databases import AnyKind
    from support.shared_brokers import Brokers

CHECKOUT = Path(__file__).parents[2]


def migrate(*arguments: str, **environment: str) -> str:
    """Runs the command, which must succeed; what it prints."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("HALFMQ_")}
    done = subprocess.run(
        [sys.executable, "-m", "halfmq_cli", "migrate", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=CHECKOUT,
        env={**own, **environment},
        timeout=HANG,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


async def test_a_broker_serves_from_what_was_migrated_and_loses_nothing_when_that_is_repeated(
    kind: AnyKind,
    brokers: Brokers,
    new_broker: Callable[..., BrokerProcess],
    connect: Callable[[BrokerProcess], Client],
) -> None:
    url = brokers.database(kind)
    first = migrate("--database", url)
    assert first.endswith(f": empty -> {newest()}\n")
    assert "halfmq:halfmq@" not in first  # no password on a screen
    nothing_to_do = first.replace("empty ->", f"{newest()} ->")
    assert migrate("--database", url) == nothing_to_do
    broker = new_broker(url, migrate=False)
    client = connect(broker)
    topic, readers = await client.make_topic(), await client.make_group()
    (one,) = await client.prepare("shop", topic, ["order"])
    # A broker that is at work is not in the way, and keeps working.
    assert migrate("--database", url) == nothing_to_do
    await client.commit([one])
    assert await client.consume_all(readers, topic) == ["order"]
    broker.stop()
    assert migrate("--database", url) == nothing_to_do
    assert await connect(new_broker(url, migrate=False)).bodies(topic) == ["order"]


def test_the_database_may_be_named_in_the_environment_or_in_a_file(tmp_path: Path) -> None:
    named, chosen = (f"sqlite:///{tmp_path / name}.db" for name in ("named", "chosen"))
    file = tmp_path / "broker.toml"
    file.write_text(f'[broker]\ndatabase = "{named}"\n')
    assert migrate("--config", str(file)) == f"{named}: empty -> {newest()}\n"
    assert migrate("--config", str(file), HALFMQ_DATABASE=chosen) == f"{chosen}: empty -> {newest()}\n"
    again = migrate("--config", str(file), "--database", named, HALFMQ_DATABASE=chosen)
    assert again == f"{named}: {newest()} -> {newest()}\n"
