"""The user's own database: one form for a local transaction, whichever library opened it.

SQLAlchemy (Engine, Connection, Session, and their asyncio forms), Django, and DB-API connections of PyMySQL,
mysqlclient, psycopg and sqlite3; on MySQL, MariaDB, PostgreSQL and SQLite. None of these libraries is imported before a
user hands in an object of it.
"""

from client_core.local_database.async_databases import AsyncLocalDatabase
from client_core.local_database.copies import HeldRow, SameDatabase, WrittenRow
from client_core.local_database.databases import LocalDatabase, identity_of, local_database
from client_core.local_database.dialects import Dialect, Failure, dialect_of, first_line_of, storable, text_of
from client_core.local_database.joining import join, join_async
from client_core.local_database.tables import Column, Index, Kind, Table, asking_for, naming_character, placed
from client_core.local_database.transactions import AsyncLocalTransaction, Ending, LocalTransaction
from client_core.local_database.verified import VerifiedDatabases

__all__ = [
    "AsyncLocalDatabase",
    "AsyncLocalTransaction",
    "Column",
    "Dialect",
    "Ending",
    "Failure",
    "HeldRow",
    "Index",
    "Kind",
    "LocalDatabase",
    "LocalTransaction",
    "SameDatabase",
    "Table",
    "VerifiedDatabases",
    "WrittenRow",
    "asking_for",
    "dialect_of",
    "first_line_of",
    "identity_of",
    "join",
    "join_async",
    "local_database",
    "naming_character",
    "placed",
    "storable",
    "text_of",
]
