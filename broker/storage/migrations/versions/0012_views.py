"""Views of what is pending, parked, and not read."""

import logging

import sqlalchemy as sa
from alembic import op

from broker.storage.migrations.explaining import DENIED
from broker.storage.migrations.names import names
from broker.storage.migrations.views import IS_NO_VIEW, statements

revision = "0012"
down_revision = "0011"

logger = logging.getLogger("halfmq.storage")


def upgrade() -> None:
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
