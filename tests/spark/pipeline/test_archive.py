"""The archive: every message in it once, whatever happened before, and whoever reads it."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest

from consumer_sdk.errors import ConfigurationError
from consumer_sdk.spark.source.scanning import DataLoss
from halfmq_pipeline.archive import Archive, Compaction, job, read_archive
from halfmq_pipeline.archive.layout import parse
from producer_sdk import Producer
from support.spark import forget

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from producer_sdk import Admin
    from support.brokers import BrokerProcess


class Archived:
    """A topic's archive."""

    def __init__(self, spark: SparkSession, endpoint: str, topic: str, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.topic = topic
        self.lines: list[str] = []
        self._options = {"endpoint": endpoint, "topic": topic}

    def run(self, messages_per_file: int = 100, **options: str) -> int:
        """Archives what is new; how many messages."""
        job = Archive(str(self.folder), self._options | options, messages_per_file, 150, self.lines.append)
        return job.run(self.spark).messages

    def numbers(self) -> list[int]:
        """What the archive holds, read as it should be."""
        rows = read_archive(self.spark, str(self.folder), self.topic).select("value").collect()
        return sorted(int(bytes(row.value)) for row in rows)

    def seen_by_others(self) -> list[int]:
        """What whoever knows nothing of halfmq finds in the folder."""
        table = ds.dataset(self.folder, partitioning="hive", exclude_invalid_files=False).to_table(["value"])
        return sorted(int(value) for value in table.column("value").to_pylist())

    def files(self) -> list[Path]:
        """All its files."""
        return sorted(self.folder.rglob("*.parquet"))


@pytest.fixture
def archived(spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path) -> Archived:
    return Archived(spark, broker.endpoint, topic, tmp_path / "archive")


def test_what_is_new_is_added(archived: Archived, send: Callable[..., None], topic: str) -> None:
    for start in range(0, 1000, 50):
        send(topic, range(start, start + 50))
    assert archived.run() == 1000
    assert archived.run() == 0
    send(topic, range(1000, 1100))
    assert archived.run() == 100
    assert archived.numbers() == archived.seen_by_others() == list(range(1100))
    assert archived.lines[0].startswith("200 of 1,000 messages in ")
    for file in archived.files():
        piece = parse(str(file.relative_to(archived.folder)))
        assert piece is not None
        assert piece.span.first // 100 == (piece.span.end - 1) // 100


def test_all_that_messages_have_is_kept(archived: Archived, broker: BrokerProcess, topic: str) -> None:
    with Producer(broker.endpoint) as producer:
        place = producer.send(
            topic, b"\x00\xff", keys=["a", "b"], tag="paid", properties={"x": "1"}, message_group="g", dedup_key="d"
        )
    archived.run()
    (row,) = read_archive(archived.spark, str(archived.folder)).collect()
    found = row.asDict()
    assert found.pop("born_at") <= found.pop("timestamp")
    assert found.pop("date") is not None
    assert (bytes(found.pop("value")), found.pop("properties")["x"]) == (b"\x00\xff", "1")
    assert found == {
        "topic": topic,
        "queue": place.queue,
        "offset": 0,
        "key": "a",
        "tag": "paid",
        "keys": ["a", "b"],
        "message_group": "g",
        "message_id": place.message_id,
        "transaction_id": place.message_id,
        "priority": 0,
        "deliver_at": None,
        "dedup_key": "d",
    }


def test_files_that_a_crash_left_out_are_written_again(
    archived: Archived, send: Callable[..., None], topic: str
) -> None:
    for start in range(0, 2000, 100):
        send(topic, range(start, start + 100))
    archived.run()
    for file in archived.files()[1::3]:
        file.unlink()
    left = len(archived.seen_by_others())
    assert archived.run() == 2000 - left
    assert archived.seen_by_others() == list(range(2000))


def test_compaction_merges_files_and_mends_overlaps(archived: Archived, send: Callable[..., None], topic: str) -> None:
    for start in range(0, 2000, 100):
        send(topic, range(start, start + 100))
        if start % 500 == 0:
            archived.run()
    archived.run()
    before = len(archived.files())
    # A kill between the new file and the end of the old ones; and a second archive of the same folder.
    kept = {file: file.read_bytes() for file in archived.files()}
    Compaction(str(archived.folder)).run(archived.spark)
    queues = {int(file.name[1:5]) for file in archived.files()}
    assert len(archived.files()) == len(queues) < before
    assert archived.seen_by_others() == list(range(2000))
    for file, content in kept.items():
        file.write_bytes(content)
    assert Counter(archived.seen_by_others()) == Counter(dict.fromkeys(range(2000), 2))
    assert archived.numbers() == list(range(2000))
    assert archived.run() == 0
    Compaction(str(archived.folder)).run(archived.spark)
    assert archived.seen_by_others() == archived.numbers() == list(range(2000))
    assert len(archived.files()) == len(queues)


def test_files_that_overlap_in_part(archived: Archived, send: Callable[..., None], topic: str, admin: Admin) -> None:
    """Two archives of one folder at a time that cut otherwise."""
    for start in range(0, 1000, 50):
        send(topic, range(start, start + 50))
    archived.run(messages_per_file=70)
    kept = {file: file.read_bytes() for file in archived.files()}
    for file in kept:
        file.unlink()
    archived.run(messages_per_file=110)
    for file, content in kept.items():
        file.write_bytes(content)
    assert len(archived.seen_by_others()) > 1000
    assert archived.numbers() == list(range(1000))
    Compaction(str(archived.folder)).run(archived.spark)
    assert archived.seen_by_others() == archived.numbers() == list(range(1000))


def test_progress_is_reported_to_a_group(
    archived: Archived, send: Callable[..., None], topic: str, admin: Admin
) -> None:
    group = f"g{uuid.uuid4().hex[:8]}"
    admin.create_group(group, keep_unread=True)
    send(topic, range(300))
    archived.run(group=group)
    assert [each.lag for each in admin.group_progress(group)] == [0] * 4
    assert sum(each.committed_offset for each in admin.group_progress(group)) == 300


def test_messages_that_are_gone(
    archived: Archived, broker: BrokerProcess, send: Callable[..., None], topic: str, admin: Admin
) -> None:
    send(topic, range(100))
    archived.run()
    send(topic, range(100, 200))
    admin.update_topic(topic, retention=0.001)
    forget(broker, topic)
    admin.update_topic(topic, retention=3600)
    send(topic, range(200, 300))
    with pytest.raises(DataLoss, match="were never archived; set failOnDataLoss"):
        archived.run()
    assert archived.run(failOnDataLoss="false") == 100
    # It is noted, and no error from now on.
    assert archived.run() == 0
    assert archived.numbers() == [*range(100), *range(200, 300)]


def test_a_beginning_is_kept(archived: Archived, send: Callable[..., None], topic: str, admin: Admin) -> None:
    """What comes after the first run is archived, also where that had nothing to archive."""
    send(topic, range(100))
    assert archived.run(startingOffsets="latest") == 0
    send(topic, range(100, 200))
    admin.update_topic(topic, queues=6)
    for start in range(200, 300, 10):
        send(topic, range(start, start + 10))
    assert archived.run(startingOffsets="latest") == 200
    assert archived.numbers() == list(range(100, 300))


def test_a_topic_that_was_made_anew(archived: Archived, send: Callable[..., None], topic: str, admin: Admin) -> None:
    send(topic, range(100))
    archived.run()
    admin.delete_topic(topic)
    admin.create_topic(topic)
    send(topic, range(10))
    with pytest.raises(ConfigurationError, match="was created again; archive it in another folder"):
        archived.run()


def test_a_topic_that_was_made_anew_and_is_longer_by_now(
    archived: Archived, send: Callable[..., None], topic: str, admin: Admin
) -> None:
    send(topic, range(10))
    archived.run()
    admin.delete_topic(topic)
    admin.create_topic(topic)
    for start in range(0, 400, 50):
        send(topic, range(start, start + 50))
    with pytest.raises(ConfigurationError, match="was created again"):
        archived.run()


def test_a_topic_that_is_made_anew_between_the_plan_and_the_tasks(
    archived: Archived, send: Callable[..., None], topic: str, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the new one gets under the offsets of the old one."""
    send(topic, range(100))
    real = job.run_tasks

    def later(*given: Any) -> Any:
        monkeypatch.setattr(job, "run_tasks", real)
        admin.delete_topic(topic)
        admin.create_topic(topic)
        for start in range(500, 900, 50):
            send(topic, range(start, start + 50))
        return real(*given)

    monkeypatch.setattr(job, "run_tasks", later)
    with pytest.raises(Exception, match="was deleted and created again"):
        archived.run()
    assert archived.files() == []
    with pytest.raises(ConfigurationError, match="was created again"):
        archived.run()


def test_a_kill_while_a_topic_is_begun(archived: Archived, send: Callable[..., None], topic: str) -> None:
    send(topic, range(100))
    archived.run(startingOffsets="latest")
    # What is left where only some of the notes were written.
    notes = sorted(archived.folder.rglob("_skipped/*"))
    (archived.folder / f"topic={topic}" / "_topic").unlink()
    for note in notes[1:]:
        note.unlink()
    assert archived.run(startingOffsets="latest") == 0


def test_topics_without_messages(archived: Archived, send: Callable[..., None], topic: str, admin: Admin) -> None:
    admin.create_topic(f"{topic}-empty")
    send(topic, range(10))
    options = {"endpoint": archived._options["endpoint"], "topics": f"{topic},{topic}-empty"}
    assert Archive(str(archived.folder), options).run(archived.spark).messages == 10
    assert read_archive(archived.spark, str(archived.folder)).count() == 10


@pytest.mark.parametrize(
    ("folder", "words"), [("a[b]", "reads as a pattern"), ("nowhere://x/y", "give a path, or a URI that pyarrow knows")]
)
def test_folders_that_cannot_be(archived: Archived, folder: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Archive(folder, archived._options).run(archived.spark)


def test_a_topic_that_is_not_there(archived: Archived, send: Callable[..., None], topic: str) -> None:
    send(topic, range(5))
    archived.run()
    with pytest.raises(ConfigurationError, match=f"no messages of 'other'; its topics are: {topic}"):
        read_archive(archived.spark, str(archived.folder), "other")
