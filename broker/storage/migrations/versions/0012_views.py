"""Views of what is pending, parked, and not read: now created by 0015, since they read a table of 0014."""

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Changes nothing."""
