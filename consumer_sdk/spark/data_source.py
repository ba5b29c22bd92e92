"""The Spark data source named ``halfmq``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from consumer_sdk.errors import ConfigurationError
from consumer_sdk.spark.failures import shown_in_one_line
from consumer_sdk.spark.options import ReadOptions, WriteOptions
from consumer_sdk.spark.sink.writers import BatchWriter, StreamWriter
from consumer_sdk.spark.sink.writing import Rows
from consumer_sdk.spark.source.columns import Projection, default_schema
from consumer_sdk.spark.source.readers import BatchReader, StreamReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["HalfmqDataSource"]


class HalfmqDataSource(DataSource):
    """Topics as tables and as streams."""

    @classmethod
    def name(cls) -> str:
        """The name in ``format("halfmq")``."""
        return "halfmq"

    def schema(self) -> StructType:
        """The default columns.

        Raises:
            ConfigurationError: An option is invalid.
        """
        with shown_in_one_line():
            ReadOptions.read(self.options)
        return default_schema()

    def reader(self, schema: StructType) -> BatchReader:
        """Creates a batch reader.

        Raises:
            ConfigurationError: An option or a column is invalid.
        """
        with shown_in_one_line():
            Projection(schema)
            return BatchReader(ReadOptions.read(self.options), schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        """Creates a stream reader.

        Raises:
            ConfigurationError: An option or a column is invalid.
        """
        with shown_in_one_line():
            Projection(schema)
            return StreamReader(ReadOptions.read(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Creates a batch writer.

        Raises:
            ConfigurationError: An option or a column is invalid, or the mode is overwrite.
        """
        with shown_in_one_line():
            _only_appended(overwrite)
            options = WriteOptions.read(self.options, streaming=False)
            Rows(schema, options.topic)
            return BatchWriter(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        """Creates a stream writer.

        Raises:
            ConfigurationError: An option or a column is invalid, or the mode is overwrite.
        """
        with shown_in_one_line():
            _only_appended(overwrite)
            options = WriteOptions.read(self.options, streaming=True)
            Rows(schema, options.topic)
            return StreamWriter(options, schema)


def _only_appended(overwrite: bool) -> None:
    if overwrite:
        msg = "a topic cannot be overwritten; use mode('append'), for streams outputMode('append')"
        raise ConfigurationError(msg, field="mode")
