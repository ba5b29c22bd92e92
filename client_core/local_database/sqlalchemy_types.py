"""The types of tables in SQLAlchemy's words: the same columns as the SQL of each dialect has."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

_ASCII: dict[str, str] = {"charset": "ascii", "collation": "ascii_bin"}

TYPES: dict[str, sa.types.TypeEngine[str]] = {
    "id": sa.String(36).with_variant(mysql.CHAR(36, **_ASCII), "mysql", "mariadb").with_variant(sa.Text(), "sqlite"),
    "word": sa.String(36)
    .with_variant(mysql.VARCHAR(36, **_ASCII), "mysql", "mariadb")
    .with_variant(sa.Text(), "sqlite"),
}
