"""What stands in for files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.wire.credentials.files import WatchedFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.rocketmq.calls import Secrets


class Keys(WatchedFile["Secrets"]):
    """A file of keys that holds what a test says."""

    def __init__(self, secrets: Mapping[str, str | tuple[str, ...]]) -> None:
        self.put(secrets)

    def put(self, secrets: Mapping[str, str | tuple[str, ...]]) -> None:
        """Replaces it."""
        several = {key: (each,) if isinstance(each, str) else each for key, each in secrets.items()}
        self._secrets = {key: tuple(secret.encode() for secret in each) for key, each in several.items()}

    def content(self, *, anew: bool = False) -> Secrets:
        return self._secrets
