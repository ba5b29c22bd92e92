"""What Spark calls: the data source named ``halfmq``."""

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
        """What stands in ``format("halfmq")``."""
        return "halfmq"

    def schema(self) -> StructType:
        """The columns, where the user names none.

        Raises:
            ConfigurationError: An option cannot be.
        """
        with shown_in_one_line():
            ReadOptions.read(self.options)
        return default_schema()

    def reader(self, schema: StructType) -> BatchReader:
        """Reads what is there.

        Raises:
            ConfigurationError: An option or a column cannot be.
        """
        with shown_in_one_line():
            Projection(schema)
            return BatchReader(ReadOptions.read(self.options), schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        """Reads on and on.

        Raises:
            ConfigurationError: An option or a column cannot be.
        """
        with shown_in_one_line():
            Projection(schema)
            return StreamReader(ReadOptions.read(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Writes a table.

        Raises:
            ConfigurationError: An option or a column cannot be, or it is to overwrite.
        """
        with shown_in_one_line():
            _only_appended(overwrite)
            options = WriteOptions.read(self.options, streaming=False)
            Rows(schema, options.topic)
            return BatchWriter(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        """Writes micro-batches.

        Raises:
            ConfigurationError: An option or a column cannot be, or it is to overwrite.
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
