"""The types of tables in SQLAlchemy's words: the same columns as the SQL of each dialect has."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

_ASCII: dict[str, str] = {"charset": "ascii", "collation": "ascii_bin"}

_UNICODE: dict[str, str] = {"charset": "utf8mb4", "collation": "utf8mb4_bin"}

TYPES: dict[str, sa.types.TypeEngine[Any]] = {
    "id": sa.String(36).with_variant(mysql.CHAR(36, **_ASCII), "mysql", "mariadb").with_variant(sa.Text(), "sqlite"),
    "word": sa.String(36)
    .with_variant(mysql.VARCHAR(36, **_ASCII), "mysql", "mariadb")
    .with_variant(sa.Text(), "sqlite"),
    "serial": sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
    "number": sa.BigInteger(),
    "name": sa.String(255).with_variant(mysql.VARCHAR(255, **_UNICODE), "mysql", "mariadb"),
    "text": sa.Text().with_variant(mysql.MEDIUMTEXT(**_UNICODE), "mysql", "mariadb"),
    "body": sa.LargeBinary().with_variant(mysql.MEDIUMBLOB(), "mysql", "mariadb"),
}
