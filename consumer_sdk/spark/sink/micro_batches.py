"""A micro-batch of foreachBatch into several outputs, each of them once, whatever is repeated.

Spark repeats a micro-batch under the same number when something failed before its end was noted. So every output
remembers the last number it was given, together with what it was given: a topic in its sink, a database in a table.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from consumer_sdk.errors import ConfigurationError
from consumer_sdk.spark.sink.batch_notes import apply_numbered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

    from consumer_sdk.spark.sink.batch_notes import Connection

__all__ = ["apply_once", "persisted", "write_once"]


@contextmanager
def persisted(frame: DataFrame) -> Iterator[DataFrame]:
    """Keeps a micro-batch while several outputs take from it.

    Without it Spark reads and computes all of it again for every output. It saves work and promises nothing: what is
    lost is computed again. So what the outputs get must come from the messages alone, not from chance or a clock.
    """
    frame.persist()
    try:
        yield frame
    finally:
        frame.unpersist()


def write_once(
    frame: DataFrame,
    batch_id: int,
    *,
    endpoint: str,
    write_id: str,
    topic: str | None = None,
    query_id: str | None = None,
    on_checkpoint_reset: str = "fail",
    **options: object,
) -> None:
    """Writes rows of a micro-batch to a topic, unless that was done before; for the function given to foreachBatch.

    Args:
        frame: The rows, with the columns of ``format("halfmq")``.
        batch_id: Number of the micro-batch.
        endpoint: One broker, ``host:port``, or several with commas between them.
        write_id: Name of this output. It stays when the query restarts, and nothing else has it.
        topic: Topic of all rows; None: the column `topic` tells.
        query_id: What numbers the micro-batches; None: the streaming query whose micro-batch this is.
        on_checkpoint_reset: ``fail`` or ``continue``: what happens when the output is another query's, because the
            checkpoint was deleted.
        options: Others of ``format("halfmq")``, such as ``tls``.

    Raises:
        ConfigurationError: This is no micro-batch, and no query_id is given.
        AnalysisException: An option or a column cannot be.
        PySparkException: The rows cannot be stored; none of them is.
    """
    named = {"endpoint": endpoint, "writeId": write_id, "writeNumber": batch_id, "topic": topic} | options
    named |= {"writeQuery": query_id or _query_of(frame), "onCheckpointReset": on_checkpoint_reset}
    given: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    frame.write.format("halfmq").options(**given).mode("append").save()


def apply_once(
    frame: DataFrame,
    batch_id: int,
    connection: Connection,
    apply: Callable[[Any], object],
    *,
    name: str,
    query_id: str | None = None,
    on_checkpoint_reset: str = "fail",
    paramstyle: str | None = None,
) -> bool:
    """Changes a database by a micro-batch, unless that was done before; for the function given to foreachBatch.

    Runs on the driver: `apply` gets a cursor and writes what was collected, a summary rather than each row. The change
    and a note of the micro-batch's number are one transaction, in the table that ``CREATE_BATCH_APPLIED`` makes.

    Args:
        frame: The micro-batch, or what was made of it; it tells the query.
        batch_id: Number of the micro-batch.
        connection: A DB-API connection, in no transaction, and not one that commits by itself.
        apply: Takes a cursor and changes the database. It neither commits nor changes tables' definitions.
        name: Name of this output, of 100 characters at most. It stays when the query restarts, and nothing else has it.
        query_id: As in write_once.
        on_checkpoint_reset: As in write_once.
        paramstyle: How the driver marks parameters, where its module does not tell: qmark, format or pyformat.

    Returns:
        Whether it was done now.

    Raises:
        ConfigurationError: The name is another query's, this is no micro-batch, or the connection cannot be used.
    """
    if on_checkpoint_reset not in {"fail", "continue"}:
        msg = f"on_checkpoint_reset {on_checkpoint_reset!r} must be fail or continue"
        raise ConfigurationError(msg, field="on_checkpoint_reset")
    return apply_numbered(
        connection,
        apply,
        name=name,
        query_id=query_id or _query_of(frame),
        number=batch_id,
        take_over=on_checkpoint_reset == "continue",
        paramstyle=paramstyle,
    )


def _query_of(frame: DataFrame) -> str:
    # Spark tells it to the thread that calls the function.
    query_id = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if not query_id:
        msg = (
            "no streaming query is at work in this thread, so nobody numbers the batches; call this in the function"
            " given to foreachBatch, or name a query_id"
        )
        raise ConfigurationError(msg, field="query_id")
    return str(query_id)
