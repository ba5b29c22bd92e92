"""A micro-batch of foreachBatch into several outputs, each of them exactly once, also when it is repeated.

Spark repeats a micro-batch under the same number after a failure before its end was recorded. So every output stores
the last number together with the data: a topic in its sink, a database in a table.
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
    """Persists a micro-batch while several outputs use it.

    Without it Spark reads and computes all of it again for every output. It is only an optimisation: lost parts are
    recomputed. So the outputs must depend on the messages only, not on random values or a clock.
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
    """Writes rows of a micro-batch to a topic, unless done before; for the function passed to foreachBatch.

    Args:
        frame: The rows, with the columns of ``format("halfmq")``.
        batch_id: Number of the micro-batch.
        endpoint: One broker, ``host:port``, or several with commas between them.
        write_id: Unique name of this output, unchanged when the query restarts.
        topic: Topic of all rows; None: from the column `topic`.
        query_id: Source of the micro-batch numbers; None: the streaming query of this micro-batch.
        on_checkpoint_reset: ``fail`` or ``continue``: what to do when the output is another query's, because the
            checkpoint was deleted.
        options: Others of ``format("halfmq")``, such as ``tls``.

    Raises:
        ConfigurationError: This is no micro-batch, and no query_id is given.
        AnalysisException: An option or a column is invalid.
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
    """Applies a micro-batch to a database, unless done before; for the function passed to foreachBatch.

    Runs on the driver: `apply` gets a cursor and writes what was collected, a summary rather than each row. The change
    and the micro-batch's number are written in one transaction, the latter to the table of ``CREATE_BATCH_APPLIED``.

    Args:
        frame: The micro-batch, or a frame derived from it; identifies the query.
        batch_id: Number of the micro-batch.
        connection: A DB-API connection, in no transaction, and not in autocommit mode.
        apply: Takes a cursor and changes the database. It neither commits nor changes tables' definitions.
        name: Unique name of this output, 100 characters at most, unchanged when the query restarts.
        query_id: As in write_once.
        on_checkpoint_reset: As in write_once.
        paramstyle: The driver's parameter style, if its module does not declare it: qmark, format or pyformat.

    Returns:
        Whether it was applied now.

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
    # Spark sets it in the thread that calls the function.
    query_id = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if not query_id:
        msg = (
            "no streaming query is running in this thread, so the batches have no numbers; call this in the function"
            " given to foreachBatch, or name a query_id"
        )
        raise ConfigurationError(msg, field="query_id")
    return str(query_id)
