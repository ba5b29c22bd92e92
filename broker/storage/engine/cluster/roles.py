"""Asks a server which kind of cluster it is in, which part it has there, and what the cluster keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.storage.engine.cluster.galera import promise_of_galera, role_in_cluster
from broker.storage.engine.cluster.group_replication import promise_of_group, role_in_group
from broker.storage.engine.cluster.replicas import promise_of_replicas, role_by_settings
from broker.storage.engine.cluster.role import Kind, Role, is_on, variables

if TYPE_CHECKING:
    from broker.storage.engine.cluster.promise import Promise


def kind_of(connection: Any) -> Kind:
    """The kind of a server's cluster, by its settings."""
    found = variables(connection, "wsrep_on", "wsrep_provider", "group_replication_group_name")
    if is_on(found.get("wsrep_on")) and found.get("wsrep_provider", "none") != "none":
        return Kind.GALERA
    if found.get("group_replication_group_name"):
        return Kind.GROUP
    return Kind.ALONE


def role_of(connection: Any, kind: Kind, writer_table: str) -> Role:
    """A server's part.

    Args:
        connection: of the driver.
        kind: of the cluster.
        writer_table: the name of cluster_writer in the database.
    """
    if kind is Kind.GALERA:
        return role_in_cluster(connection, writer_table)
    return role_in_group(connection) if kind is Kind.GROUP else role_by_settings(connection)


def promise_of(connection: Any, kind: Kind, servers: int, *, primary: bool = True) -> Promise:
    """What an acknowledged commit survives.

    Args:
        connection: of the driver, to one of the servers.
        kind: of their cluster.
        servers: how many the URL names.
        primary: whether it is the primary; otherwise what it would keep if it was.
    """
    if kind is Kind.GALERA:
        return promise_of_galera(connection)
    return (
        promise_of_group(connection)
        if kind is Kind.GROUP
        else promise_of_replicas(connection, servers, primary=primary)
    )
