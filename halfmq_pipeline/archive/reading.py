"""The archive as a table."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, functions
from pyspark.sql.types import DateType, StringType

from consumer_sdk.errors import ConfigurationError
from halfmq_pipeline.archive.folder import Folder
from halfmq_pipeline.archive.layout import chosen
from halfmq_pipeline.archive.writing import archive_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import SparkSession

    from halfmq_pipeline.archive.layout import Chosen

__all__ = ["files_of", "frame_of", "read_archive"]


def read_archive(spark: SparkSession, folder: str, topics: str | Iterable[str] | None = None) -> DataFrame:
    """The messages of an archive, each once, with the columns of the source and the column `date`.

    Args:
        spark: The session.
        folder: Folder of the archive.
        topics: Which topics; None: all.

    Raises:
        ConfigurationError: A topic is not in the archive.
    """
    opened = Folder(folder)
    if topics is None:
        files = [each for topic in opened.topics() for each in chosen(opened.pieces(topic))]
    else:
        named = [topics] if isinstance(topics, str) else topics
        files = [each for topic in named for each in files_of(opened, topic)]
    return frame_of(spark, opened, files)


def files_of(folder: Folder, topic: str) -> list[Chosen]:
    """The effective files of a topic.

    Raises:
        ConfigurationError: There are none.
    """
    files = chosen(folder.pieces(topic))
    if not files:
        known = ", ".join(folder.topics()) or "none"
        msg = f"the archive {folder.uri} has no messages of {topic!r}; its topics are: {known}"
        raise ConfigurationError(msg, field="topic")
    return files


def frame_of(spark: SparkSession, folder: Folder, files: Sequence[Chosen]) -> DataFrame:
    """The messages of some files, from their effective offsets on."""
    schema = archive_schema().add("topic", StringType()).add("date", DateType())
    reader = spark.read.schema(schema).option("basePath", folder.spark_path(""))
    whole = [each.piece.path for each in files if each.first == each.piece.span.first]
    frames = [reader.parquet(*map(folder.spark_path, whole))] if whole else []
    frames += [
        reader.parquet(folder.spark_path(each.piece.path)).where(functions.col("offset") >= each.first)
        for each in files
        if each.first > each.piece.span.first
    ]
    if not frames:
        return spark.createDataFrame([], schema)
    return reduce(DataFrame.unionByName, frames)
