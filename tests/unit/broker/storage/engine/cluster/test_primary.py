"""Which server is the primary, by what each of them says."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from broker.storage.engine.cluster.addresses import Address
from broker.storage.engine.cluster.primary import ANSWER_WITHIN, SILENCE, NoPrimary, PrimaryFinder
from broker.storage.engine.cluster.role import Kind, Role

if TYPE_CHECKING:
    from collections.abc import Iterator

WRITABLE = Role(Kind.ALONE, writable=True)
READ_ONLY = Role(Kind.ALONE, writable=False, reason="read_only is on")
PRIMARY = Role(Kind.GROUP, writable=True, view=(1700, 3))
SECONDARY = Role(Kind.GROUP, writable=False, reason="secondary, online", view=(1700, 3))
LATER = (1700, 4)


@dataclass
class Server:
    """A server as a probe sees it."""

    address: Address
    role: Role | None = None
    waiting: bool = False
    asked: int = 0
    takes: float = 0.0
    takes_commits: bool = True
    closed: bool = False

    def ask(self) -> Role:
        self.asked += 1
        time.sleep(self.takes)
        if self.role is None:
            raise ConnectionRefusedError("refused")
        return self.role

    def take_over(self, role: Role) -> bool:
        if not self.takes_commits:
            return False
        self.role = replace(role, writable=True, writer=role.node, beats=role.beats + 1)
        return True

    def close(self) -> None:
        self.closed = True


@dataclass
class World:
    """Three servers, and who looks for the primary."""

    servers: list[Server] = field(default_factory=lambda: [Server(Address(f"db{n}", 3306)) for n in (1, 2, 3)])
    changes: list[Address | None] = field(default_factory=list)
    now: float = 100.0
    kind: Kind | None = None

    def __post_init__(self) -> None:
        self.finder = PrimaryFinder(self.servers, self.changes.append, kind=self.kind, clock=lambda: self.now)

    def say(self, *roles: Role | None) -> None:
        for server, role in zip(self.servers, roles, strict=True):
            server.role = role
        self.finder.look()

    @property
    def primary(self) -> str | None:
        try:
            return self.finder.find(0).host
        except NoPrimary:
            return None


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.finder.close()


def test_the_one_that_accepts_writes_is_the_primary(world: World) -> None:
    world.say(READ_ONLY, WRITABLE, None)
    assert world.primary == "db2"
    assert [each and each.host for each in world.changes] == ["db2"]


def test_a_failover_is_followed_and_noticed_once(world: World) -> None:
    world.say(PRIMARY, SECONDARY, SECONDARY)
    world.say(None, SECONDARY, SECONDARY)
    assert world.primary == "db1", "a server that does not answer once is not given up for that"
    world.say(None, PRIMARY, SECONDARY)
    world.say(None, PRIMARY, SECONDARY)
    assert world.primary == "db2"
    assert [each and each.host for each in world.changes] == ["db1", "db2"]


def test_a_primary_that_says_that_it_is_none_any_more_is_left_at_once(world: World) -> None:
    world.say(PRIMARY, SECONDARY, SECONDARY)
    world.say(SECONDARY, SECONDARY, SECONDARY)
    assert world.changes[-1] is None
    assert world.primary is None


def test_two_that_accept_writes_without_a_group_are_none(world: World) -> None:
    world.say(WRITABLE, READ_ONLY, None)
    world.say(WRITABLE, WRITABLE, None)
    assert world.changes[-1] is None
    with pytest.raises(NoPrimary, match=r"2 servers accept writes.*set read_only"):
        world.finder.find(0)
    world.say(READ_ONLY, WRITABLE, None)
    assert world.primary == "db2"


def test_one_of_two_that_accept_writes_is_none_while_the_other_is_slow(world: World) -> None:
    """Which one has what was acknowledged is as open as before."""
    world.say(READ_ONLY, WRITABLE, None)
    world.say(WRITABLE, WRITABLE, None)
    world.servers[1].takes = ANSWER_WITHIN + 0.3
    world.finder.look()
    assert world.primary is None
    with pytest.raises(NoPrimary, match=r"2 servers accept writes.*set read_only on db2:3306, which accepted them"):
        world.finder.find(0)
    world.servers[1].takes = 0.0
    time.sleep(0.4)
    world.say(WRITABLE, READ_ONLY, None)
    assert world.primary == "db1"
    # Later its silence means nothing.
    world.servers[0].takes = ANSWER_WITHIN + 0.3
    world.say(WRITABLE, WRITABLE, None)
    assert world.primary == "db2"


def test_one_that_has_said_that_it_is_read_only_counts_no_more_though_none_accepted_writes_then(world: World) -> None:
    world.say(WRITABLE, WRITABLE, READ_ONLY)
    world.say(READ_ONLY, READ_ONLY, READ_ONLY)
    world.servers[0].takes = ANSWER_WITHIN + 0.3
    world.say(READ_ONLY, WRITABLE, READ_ONLY)
    assert world.primary == "db2"


def test_of_two_that_accept_writes_one_may_be_stopped(world: World) -> None:
    world.say(WRITABLE, WRITABLE, READ_ONLY)
    assert world.primary is None
    world.say(None, WRITABLE, READ_ONLY)
    assert world.primary == "db2"


def test_a_former_source_that_comes_back_does_not_win_by_being_faster(world: World) -> None:
    world.say(READ_ONLY, WRITABLE, READ_ONLY)
    world.servers[1].takes = 1.3
    world.say(WRITABLE, WRITABLE, READ_ONLY)
    assert world.changes[-1] is None
    assert world.primary is None


def test_of_two_primaries_of_a_group_the_one_of_the_later_view_is_it(world: World) -> None:
    """The other one was frozen, and has not yet heard that it is none any more."""
    world.say(PRIMARY, replace(PRIMARY, view=LATER), replace(SECONDARY, view=LATER))
    assert world.primary == "db2"


def test_a_former_primary_is_none_though_the_present_one_does_not_answer(world: World) -> None:
    """It was cut off, is reached again, and has not yet heard that the group went on without it."""
    world.say(None, replace(PRIMARY, view=LATER), replace(SECONDARY, view=LATER))
    world.say(PRIMARY, None, None)
    assert world.primary == "db2"
    world.finder.suspect(Address("db2", 3306))
    assert world.primary is None


def test_a_secondary_is_enough_to_know_that_a_primary_is_a_former_one(world: World) -> None:
    world.say(PRIMARY, None, replace(SECONDARY, view=LATER))
    assert world.primary is None


def test_a_group_that_was_started_anew_begins_to_count_anew(world: World) -> None:
    world.say(replace(PRIMARY, view=(1700, 9)), SECONDARY, SECONDARY)
    world.say(SECONDARY, replace(PRIMARY, view=(1800, 1)), SECONDARY)
    assert world.primary == "db2"


def test_two_groups_have_no_primary(world: World) -> None:
    """Somebody had one member begin a group while the others went on; it lacks what those have acknowledged."""
    world.say(PRIMARY, SECONDARY, None)
    world.say(PRIMARY, SECONDARY, replace(PRIMARY, view=(1800, 1)))
    assert world.changes[-1] is None
    with pytest.raises(NoPrimary, match="in different groups"):
        world.finder.find(0)


def test_a_group_that_goes_on_when_the_other_one_is_ended_has_its_primary_back(world: World) -> None:
    world.say(PRIMARY, SECONDARY, replace(PRIMARY, view=(1800, 1)))
    assert world.primary is None
    world.say(PRIMARY, SECONDARY, replace(SECONDARY, reason="it has not joined its group", view=(0, 0)))
    assert world.primary == "db1"
    later = (1700, 5)
    world.say(*(replace(role, view=later) for role in (PRIMARY, SECONDARY, SECONDARY)))
    assert world.primary == "db1"


def test_of_two_groups_the_one_that_is_silent_is_named(world: World) -> None:
    world.say(PRIMARY, SECONDARY, replace(PRIMARY, view=(1800, 1)))
    world.say(PRIMARY, SECONDARY, None)
    with pytest.raises(NoPrimary, match="db3:3306 told of a later change of the group, and does not answer"):
        world.finder.find(0)


def test_a_group_may_be_started_anew_by_a_member_with_an_earlier_clock(world: World) -> None:
    world.say(replace(PRIMARY, view=(1700, 9)), SECONDARY, SECONDARY)
    world.say(*(replace(role, view=(1699, 1)) for role in (SECONDARY, PRIMARY, SECONDARY)))
    assert world.primary == "db2"


def test_a_primary_that_could_not_be_used_is_looked_for_again(world: World) -> None:
    world.say(PRIMARY, SECONDARY, SECONDARY)
    asked = world.servers[0].asked
    assert world.primary == "db1"
    assert world.servers[0].asked == asked
    world.finder.suspect(Address("db1", 3306))
    assert world.primary == "db1"
    assert world.servers[0].asked > asked
    assert world.changes == [Address("db1", 3306)]


def test_many_who_wait_ask_together(world: World) -> None:
    for server in world.servers:
        server.takes = 0.2
    world.say(READ_ONLY, READ_ONLY, READ_ONLY)
    asked = world.servers[0].asked
    with ThreadPoolExecutor(20) as threads:
        found = list(threads.map(lambda _: world.primary, range(20)))
    assert found == [None] * 20
    assert world.servers[0].asked - asked < 5


def test_without_a_primary_the_error_tells_what_each_server_said(world: World) -> None:
    world.say(READ_ONLY, None, SECONDARY)
    with pytest.raises(NoPrimary, match=r"db1:3306: read_only is on; db2:3306: refused; db3:3306: secondary, online"):
        world.finder.find(0)


def test_a_trusted_address_is_used_whatever_it_says_and_its_changes_are_noticed() -> None:
    server, changes = Server(Address("proxy", 3306), WRITABLE), list[Address | None]()
    finder = PrimaryFinder([server], changes.append, trusted=True)
    finder.look()
    assert not server.closed
    server.role = READ_ONLY
    finder.look()
    assert finder.find(0) == server.address
    assert changes == [None]
    assert not finder.is_writable
    # Its name may lead to another server by now, which a new connection is made to.
    assert server.closed
    finder.look()
    server.role = None
    finder.look()
    assert changes == [None], "no answer is no change"
    server.role = WRITABLE
    finder.look()
    assert changes == [None, None]
    finder.close()


@pytest.mark.parametrize("role", [PRIMARY, replace(SECONDARY, writable=True)])
def test_a_connection_that_was_being_made_to_a_former_primary_is_not_used(world: World, role: Role) -> None:
    """Those that were made are cut when the primary changes; this one was not known then."""
    world.say(role, SECONDARY, SECONDARY)
    address = world.finder.find(0)
    assert world.finder.accepts(address, role)
    world.say(None, replace(PRIMARY, view=PRIMARY.view), SECONDARY)
    assert not world.finder.accepts(address, role)


def test_a_connection_that_was_being_made_while_two_accept_writes_is_not_used(world: World) -> None:
    world.say(WRITABLE, READ_ONLY, None)
    world.say(WRITABLE, WRITABLE, None)
    assert not world.finder.accepts(Address("db1", 3306), WRITABLE)


# A server that was started outside of its cluster accepts writes


@pytest.fixture(params=[Kind.GROUP, Kind.GALERA])
def of_kind(request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(kind=request.param)
    yield made
    made.finder.close()


def test_a_server_outside_of_its_cluster_does_not_become_the_primary(of_kind: World) -> None:
    """The others are without a primary for as long as an election takes."""
    elects = Role(of_kind.kind or Kind.GROUP, writable=False, reason="secondary, online")
    of_kind.say(WRITABLE, elects, None)
    assert of_kind.primary is None
    with pytest.raises(NoPrimary, match="db1:3306: it runs outside of "):
        of_kind.finder.find(0)


def test_a_server_outside_of_its_cluster_does_not_hide_the_primary(of_kind: World) -> None:
    writes = Role(of_kind.kind or Kind.GROUP, writable=True, node="b", writer="b")
    of_kind.say(WRITABLE, writes, None)
    assert of_kind.primary == "db2"


def test_nothing_is_written_where_sessions_are_not_made_for_the_cluster_that_is_there() -> None:
    """At the start only one server answered, which had been started outside of its cluster."""
    world = World(kind=Kind.ALONE)
    world.say(WRITABLE, None, None)
    assert world.primary == "db1"
    world.say(WRITABLE, PRIMARY, SECONDARY)
    assert world.changes[-1] is None
    assert world.primary is None
    world.finder.close()


# Galera: every node accepts writes, and brokers agree on one


OWN, OTHER = ("the cluster", 7), ("begun anew", 1)


def node(name: str, writer: str = "", beats: int = 0, cluster: tuple[str, int] = OWN) -> Role:
    writable = name == writer
    return Role(Kind.GALERA, writable, "another", node=name, writer=writer, beats=beats, cluster=cluster)


EMPTY = Role(Kind.GALERA, writable=True, node="new", cluster=OTHER)
"""A node whose volume was lost, and that began a cluster of its own: it has no tables."""


def test_a_node_in_a_new_cluster_does_not_become_the_writer(world: World) -> None:
    world.say(EMPTY, node("b", "b"), node("c", "b"))
    assert world.primary == "db2"
    # Nor when nobody answers whom brokers wrote to before.
    world.say(EMPTY, None, None)
    world.finder.suspect(Address("db2", 3306))
    assert world.primary is None
    with pytest.raises(NoPrimary, match="db1:3306: it is in another Galera cluster than the one in use"):
        world.finder.find(0)


def test_a_node_in_a_new_cluster_is_not_the_writer_of_a_broker_that_starts(world: World) -> None:
    """The writer does not answer; others know that there is one."""
    world.say(EMPTY, None, node("c", "b"))
    assert world.primary is None
    with pytest.raises(NoPrimary, match="without halfmq's tables"):
        world.finder.find(0)


@pytest.mark.parametrize("anew", [OTHER, ("the cluster", 1)], ids=["another", "from old data"])
def test_of_nodes_in_two_clusters_none_becomes_the_writer(world: World, anew: tuple[str, int]) -> None:
    for _ in range(2):
        world.say(node("a", "x", 7, anew), None, node("c", "b", 500))
        world.now += SILENCE
    assert world.primary is None
    with pytest.raises(NoPrimary, match="in different clusters"):
        world.finder.find(0)
    world.say(None, None, node("c", "b", 500))
    world.now += SILENCE
    world.say(None, None, node("c", "b", 500))
    assert world.primary == "db3"


def test_two_clusters_that_both_have_a_writer_have_none(world: World) -> None:
    world.say(node("a", "a", 7, ("the cluster", 1)), node("b", "b", 500), None)
    assert world.primary is None
    with pytest.raises(NoPrimary, match="in different clusters, end one"):
        world.finder.find(0)


def test_before_the_first_migration_any_node_is_as_good(world: World) -> None:
    world.say(None, replace(EMPTY, cluster=OWN), replace(EMPTY, node="c", cluster=OWN))
    assert world.primary == "db2"


def test_the_first_node_becomes_the_writer_where_there_is_none(world: World) -> None:
    world.say(None, node("b"), node("c"))
    assert world.primary == "db2"
    assert world.servers[1].role == node("b", "b", 1)


def test_the_writer_stays_the_one_when_others_come_back(world: World) -> None:
    world.say(node("a", "b"), node("b", "b"), node("c", "b"))
    assert world.primary == "db2"


def test_a_writer_that_others_still_use_is_not_replaced_by_one_who_cannot_reach_it(world: World) -> None:
    for beats in range(10):
        world.say(None, node("b", "a", beats), node("c", "a", beats))
        world.now += SILENCE / 2
    assert world.primary is None


def test_a_writer_of_which_nobody_reports_is_replaced(world: World) -> None:
    world.say(None, node("b", "a", 7), node("c", "a", 7))
    world.now += SILENCE - 0.1
    world.say(None, node("b", "a", 7), node("c", "a", 7))
    assert world.primary is None
    world.now += 0.2
    world.say(None, node("b", "a", 7), node("c", "a", 7))
    assert world.primary == "db2"


def test_a_node_that_takes_no_commit_does_not_keep_others_from_becoming_the_writer(world: World) -> None:
    """Such as one with read_only, or one that gives its data to another one."""
    world.servers[1].takes_commits = False
    for _ in range(3):
        world.say(None, node("b"), node("c"))
    assert world.primary == "db3"
