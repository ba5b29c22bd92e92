"""The queue in a table of MySQL as it is often written: owner, time of dequeuing, take-over by peers.

docs/ways/queue-in-mysql.md shows these statements beside halfmq's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pymysql

TABLE = """
CREATE TABLE queue (
  id BIGINT AUTO_INCREMENT PRIMARY KEY,
  content VARCHAR(200) NOT NULL,
  owner VARCHAR(50),
  dequeued_at DATETIME(6),
  KEY waiting (owner, id)
) ENGINE=InnoDB
"""
ENQUEUE = "INSERT INTO queue (content) VALUES (%s)"
TAKE = """
UPDATE queue SET owner = %s, dequeued_at = NOW(6)
WHERE owner IS NULL ORDER BY id LIMIT 1
"""
TAKE_OVER = """
UPDATE queue SET owner = %s, dequeued_at = NOW(6)
WHERE dequeued_at < NOW(6) - INTERVAL %s MICROSECOND ORDER BY id LIMIT 1
"""
TAKEN = "SELECT id, content FROM queue WHERE owner = %s ORDER BY dequeued_at DESC LIMIT 1"
DONE = "DELETE FROM queue WHERE id = %s"


class ArticleQueue:
    """One process's view of it, on a connection that commits each statement."""

    def __init__(self, connection: pymysql.Connection, owner: str, lease: float) -> None:
        self._connection = connection
        self._owner = owner
        self._lease = round(lease * 1e6)

    def enqueue(self, content: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(ENQUEUE, (content,))

    def take(self) -> tuple[int, str] | None:
        """The first message that nobody has, or whose owner has had it for too long."""
        with self._connection.cursor() as cursor:
            if not cursor.execute(TAKE_OVER, (self._owner, self._lease)) and not cursor.execute(TAKE, (self._owner,)):
                return None
            cursor.execute(TAKEN, (self._owner,))
            row: tuple[int, str] | None = cursor.fetchone()
            return row

    def done(self, number: int) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(DONE, (number,))
