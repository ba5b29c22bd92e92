"""Topics, groups, filters, rules and quotas as one document: exported, compared, applied.

A document consists of what YAML and JSON can hold::

    topics:
      orders: {queues: 8, retention: 7d}
    groups:
      shipping: {max_attempts: 5, retry_delays: [1s, 10s], filters: {orders: {tags: paid}}}
    rules:
      - {subject: "role:shops", actions: [produce], kind: topic, pattern: orders}
    quotas:
      acme: {messages_per_second: 1000}

A section, a topic or a setting that is not named stays as it is. Nothing is deleted unless it is asked for.
"""

from __future__ import annotations

from client_core.admin.configuration.changes import ConfigurationChange
from client_core.admin.configuration.document import DEAD_LETTERS, Document
from client_core.admin.configuration.exporting import Found, exported
from client_core.admin.configuration.making import make
from client_core.admin.configuration.planning import plan

__all__ = ["DEAD_LETTERS", "ConfigurationChange", "Document", "Found", "exported", "make", "plan"]
