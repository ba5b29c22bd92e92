"""Cells: which databases there are, what is placed in which of them, and what is on its way; views with gaps."""

import logging
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from broker.storage.migrations.explaining import DENIED
from broker.storage.migrations.names import index, names, table
from broker.storage.migrations.views import IS_NO_VIEW, statements

revision = "0015"
down_revision = "0014"

MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
ID = sa.LargeBinary(16).with_variant(mysql.BINARY(16), "mysql", "mariadb")
BODY = sa.LargeBinary().with_variant(mysql.MEDIUMBLOB(), "mysql", "mariadb")
LARGE = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")


logger = logging.getLogger("halfmq.storage")


def upgrade() -> None:
    op.create_table(
        table("cell"),
        sa.Column("cell_no", sa.SmallInteger(), primary_key=True, autoincrement=False, comment="0: the home database"),
        sa.Column("name", sa.String(30), nullable=False),
        sa.Column("installation", ID, nullable=False, comment="the same in all cells"),
        sa.Column("own", sa.SmallInteger(), nullable=False, comment="1: of this database"),
        sa.UniqueConstraint("name", name="cell_name"),
        **MYSQL,
    )
    op.create_table(
        table("placement"),
        sa.Column("kind", sa.SmallInteger(), primary_key=True, autoincrement=False, comment="1 topic, 2 group, 3 sink"),
        sa.Column("name", sa.String(376), primary_key=True),
        sa.Column("cell_no", sa.SmallInteger(), nullable=False),
        sa.Column("move_id", sa.Integer(), comment="set while it is being moved"),
        **MYSQL,
    )
    op.create_index(index("placement_cell"), table("placement"), ["cell_no", "kind"])
    op.create_index(index("placement_move"), table("placement"), ["move_id"])
    op.create_table(
        table("cell_move"),
        sa.Column("move_id", sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column("from_cell", sa.SmallInteger(), nullable=False),
        sa.Column("to_cell", sa.SmallInteger(), nullable=False),
        sa.Column("state", sa.SmallInteger(), nullable=False, comment="1 begun, 2 done, 3 given up"),
        sa.Column("names", BODY, nullable=False, comment="JSON list of [kind, name]"),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger()),
        sa.Column("told_by", sa.String(255), nullable=False),
        sqlite_autoincrement=True,
        **MYSQL,
    )
    op.create_table(
        table("move_state"),
        sa.Column("move_id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("state", sa.SmallInteger(), nullable=False, comment="1 coming, 2 come, 3 given up; 4 sealed, 5 gone"),
        sa.Column("since", sa.BigInteger(), nullable=False),
        **MYSQL,
    )
    op.create_table(
        table("moving_row"),
        sa.Column("move_id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("row_no", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("origin", sa.String(40), nullable=False, comment="its table"),
        sa.Column("content", LARGE, nullable=False),
        **MYSQL,
    )
    op.create_table(
        table("moved_name"),
        sa.Column("kind", sa.SmallInteger(), primary_key=True, autoincrement=False, comment="as in placement"),
        sa.Column("name", sa.String(376), primary_key=True),
        sa.Column("move_id", sa.Integer(), nullable=False, comment="by which it left this cell"),
        **MYSQL,
    )
    _create_views()


def _create_views() -> None:
    connection = op.get_bind()
    sqlite = connection.dialect.name == "sqlite"
    try:
        for statement in statements(names(), sqlite=sqlite):
            # As it is: to SQLAlchemy a colon is a parameter.
            connection.exec_driver_sql(statement.replace("%", "%%") if not sqlite else statement)
    except sa.exc.DBAPIError as error:
        code = getattr(error.orig, "args", (None,))[0]
        if not sqlite and code not in {*DENIED, IS_NO_VIEW}:
            raise
        # The broker needs no view, and its user may lack the right.
        logger.warning(
            "the views for SQL were not created: grant CREATE VIEW, and run `halfmq migrate --views` (%s)", error.orig
        )
