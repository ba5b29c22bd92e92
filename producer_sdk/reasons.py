"""Why a transaction was rolled back, as the broker keeps it."""

from __future__ import annotations

from client_core.connection import reason_of

__all__ = ["brief_reason"]

_DATABASES = {"sqlalchemy", "django", "pymysql", "MySQLdb", "psycopg", "psycopg2", "sqlite3", "asyncpg", "aiosqlite"}


def brief_reason(error: BaseException) -> str:
    """The exception as text; of a database's only its kind and code, for its text may have values of the row."""
    if type(error).__module__.partition(".")[0] not in _DATABASES:
        return reason_of(error)
    original = getattr(error, "orig", None) or error.__cause__ or error
    first = original.args[0] if original.args else None
    code = getattr(original, "sqlstate", None) or getattr(original, "sqlite_errorname", None)
    code = code or (first if isinstance(first, int) else None)
    return type(error).__name__ if code is None else f"{type(error).__name__} ({code})"
