"""MariaDB."""

from __future__ import annotations

from broker.storage.engine.dialects.servers import Server


class MariaDB(Server):
    """MariaDB 10.6 and newer."""

    name = "mariadb"
    oldest = (10, 6)
    idle_setting = "idle_transaction_timeout"

    @classmethod
    def has_version(cls, version: str) -> bool:
        """Its version contains its name."""
        return "mariadb" in version.lower()
