"""Galera: what a node says of itself, and what the cluster keeps."""

from __future__ import annotations

from typing import Any

from broker.storage.engine.cluster.galera_writer import node_of, writer
from broker.storage.engine.cluster.promise import FEW, Promise, too_few
from broker.storage.engine.cluster.role import Kind, Role, statuses, variables
from broker.storage.engine.unsuitable import Unsuitable

_USABLE = {"Synced", "Donor/Desynced"}
_STATUS = (
    "wsrep_ready",
    "wsrep_cluster_status",
    "wsrep_local_state_comment",
    "wsrep_gcomm_uuid",
    "wsrep_cluster_state_uuid",
    "wsrep_cluster_conf_id",
)


def role_in_cluster(connection: Any, table: str) -> Role:
    """Asks a node for its state, and who the writer is; `table`: the name of cluster_writer in the database."""
    found = statuses(connection, *_STATUS)
    status, state = found.get("wsrep_cluster_status", ""), found.get("wsrep_local_state_comment", "")
    if status != "Primary":
        return Role(Kind.GALERA, writable=False, reason=f"no quorum: its component is {status or 'unknown'}")
    if state not in _USABLE or found.get("wsrep_ready") != "ON":
        return Role(Kind.GALERA, writable=False, reason=f"not ready: {state}")
    node = found["wsrep_gcomm_uuid"]
    cluster = (found.get("wsrep_cluster_state_uuid", ""), int(found.get("wsrep_cluster_conf_id") or 0))
    found_writer = writer(connection, table)
    if found_writer is None:
        # Before the first migration any node is as good.
        return Role(Kind.GALERA, writable=True, node=node, cluster=cluster)
    name, uses = found_writer
    reason = "" if node_of(name) == node else "brokers write to another node" if name else "no node is the writer yet"
    return Role(Kind.GALERA, not reason, reason, node=node, writer=name, beats=uses, cluster=cluster)


def promise_of_galera(connection: Any) -> Promise:
    """What the cluster keeps, and the settings that would break it."""
    found = statuses(connection, "wsrep_cluster_size")
    options = dict(
        pair.strip().split("=", 1)
        for pair in variables(connection, "wsrep_provider_options").get("wsrep_provider_options", "").split(";")
        if "=" in pair
    )
    options = {name.strip(): value.strip() for name, value in options.items()}
    members = int(found.get("wsrep_cluster_size") or 0)
    promise = Promise(
        f"the loss of {(members - 1) // 2} of {members} nodes of the Galera cluster, for all of them have received and"
        " certified it before it is acknowledged, and on another node brokers read after it (wsrep_sync_wait); if all"
        " lose power at once, what this node has written to its disk"
    )
    for name, meaning in (
        ("pc.ignore_quorum", "a part of the cluster goes on without a majority"),
        ("pc.ignore_sb", "both halves of a divided cluster go on"),
    ):
        if options.get(name, "false").lower() in {"true", "yes", "on", "1"}:
            promise.unsafe.append(
                Unsuitable(
                    f"{name} is set: {meaning}, and what one of them acknowledges is lost",
                    f"set {name}=false in wsrep_provider_options of each node",
                )
            )
    if members < FEW:
        promise.warnings.append(too_few("cluster", members))
    return promise
