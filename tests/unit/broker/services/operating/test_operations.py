"""What operators do: topics, groups, dead letters, transactions in doubt, look-ups."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from broker.domain.check_policy import CheckPolicy
from broker.domain.group import ConsumerGroup
from broker.domain.place import InLog
from broker.domain.topic import QueueState, Topic, TopicChange
from broker.domain.transaction import TransactionState, VerdictSource
from broker.errors import InvalidArgument, NotFound, VerdictConflict
from broker.ports.epochs import SINK_GROUP
from broker.ports.groups import DeadLetterPage, DeadLetterSearch, Redriven
from broker.ports.queries import FoundMessage, FoundPage, MessageSearch, TimelineEvent, TimelineKind
from broker.ports.transactions import (
    DecidedPage,
    DecidedSearch,
    OpEntry,
    TransactionDetail,
    TransactionFilter,
    TransactionOutcome,
    TransactionPage,
    TransactionSummary,
    VerdictWork,
)
from broker.services.operating.dead_letters import DeadLetterService
from broker.services.operating.groups import GroupService
from broker.services.operating.queries import MessageQueries, Wanted
from broker.services.operating.topics import TopicService
from broker.services.operating.transactions import TransactionOperations, Undecided
from broker.services.positions import Positions
from broker.services.wakeups import Wakeups
from unit.broker.services.fakes import FakeNames

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.domain.filters import Filter

ID = bytes(15) + b"\1"
POLICY = CheckPolicy()


def summary(number: int, state: TransactionState = TransactionState.PREPARED) -> TransactionSummary:
    return TransactionSummary(bytes(15) + bytes([number]), state, "shop", 1, 0, 100 + number, None, None)


class Topics:
    """The states of queues, none for topics that are gone, and what was changed."""

    def __init__(self, names: FakeNames) -> None:
        self.names = names
        self.deleted: list[Topic] = []

    async def update_topic(self, topic: Topic, change: TopicChange) -> Topic:
        return topic

    async def list_topics(self, after: str, limit: int) -> list[Topic]:
        return [self.names.topics[name] for name in sorted(self.names.topics) if name > after][:limit]

    async def delete_topic(self, topic: Topic) -> None:
        self.deleted.append(topic)

    async def queue_states(self, topic: Topic, group: ConsumerGroup | None) -> list[QueueState]:
        there = topic in self.names.topics.values()
        return [QueueState(topic.name, 0, 0, 5)] if there else []

    async def offsets_at(self, topic: Topic, time: int) -> list[int]:
        return [time]


class TestTopics:
    async def test_pages_follow_one_another(self) -> None:
        names = FakeNames("a", "b", "c")
        service = TopicService(Topics(names), names.catalog())
        first, token = await service.topics("", 2)
        last, end = await service.topics(token, 2)
        assert [[topic.name for topic in page] for page in (first, last)] == [["a", "b"], ["c"]]
        assert end == ""

    async def test_a_page_has_a_bound(self) -> None:
        names = FakeNames()
        with pytest.raises(InvalidArgument) as refused:
            await TopicService(Topics(names), names.catalog()).topics("", 1001)
        assert refused.value.field == "page_size"

    async def test_the_topic_that_has_the_name_now_is_deleted(self) -> None:
        names = FakeNames("orders")
        store, catalog = Topics(names), names.catalog()
        await catalog.topic("orders")
        again = names.make_topic("orders")
        await TopicService(store, catalog).delete("orders")
        assert store.deleted == [again]

    async def test_queues_of_a_topic_that_was_made_again_elsewhere(self) -> None:
        names = FakeNames("orders")
        catalog = names.catalog()
        await catalog.topic("orders")
        names.make_topic("orders")
        assert len(await TopicService(Topics(names), catalog).queue_states("orders")) == 1

    async def test_a_group_whose_progress_is_asked_for_is_not_created(self) -> None:
        names = FakeNames("orders")
        service = TopicService(Topics(names), names.catalog(create_groups=True))
        assert len(await service.queue_states("orders", "readers")) == 1
        assert names.groups == {}


class Groups:
    """Notes what is changed."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    async def update_group(self, group: ConsumerGroup, changes: dict[str, Any]) -> ConsumerGroup:
        self.calls.append(changes)
        return group

    async def pause_group(self, group: ConsumerGroup, *, paused: bool, reason: str) -> ConsumerGroup:
        self.calls.append((paused, reason))
        return group

    async def set_filter(self, group: ConsumerGroup, topic: Topic, wanted: Filter | None) -> ConsumerGroup:
        return group

    async def filters_of(self, group: ConsumerGroup) -> list[tuple[str, Filter]]:
        return []

    async def commit_offsets(self, group: ConsumerGroup, topic: Topic, offsets: Mapping[int, int]) -> None:
        self.calls.append(dict(offsets))

    async def seek_group(
        self, group: ConsumerGroup, queue_ids: Sequence[int], *, to: int | None, offset: int | None
    ) -> None:
        self.calls.append((list(queue_ids), to, offset))

    async def list_groups(self, after: str, limit: int) -> list[ConsumerGroup]:
        return []

    async def delete_group(self, group: ConsumerGroup) -> None:
        self.calls.append(group.name)

    async def group_progress(self, group: ConsumerGroup) -> list[QueueState]:
        return [QueueState("orders", 0, 0, 5), QueueState("returns", 0, 0, 5)]


class TestGroups:
    def service(self, store: Groups, wakeups: Wakeups | None = None) -> GroupService:
        names = FakeNames("orders", queue_count=2, groups=["billing"])
        return GroupService(store, names.catalog(), wakeups or Wakeups())

    async def test_offsets_are_noted_by_queue_id(self) -> None:
        store = Groups()
        await self.service(store).commit("billing", "orders", [(1, 7), (0, 3)])
        assert store.calls == [{11: 7, 10: 3}]

    async def test_a_group_is_created_for_a_topic_that_is_there(self) -> None:
        """Not for one that was there a moment ago: the group would stay where the topic was."""
        names, store = FakeNames("orders", "gone"), Groups()
        catalog = names.catalog(create_groups=True)
        for topic in ("orders", "gone"):
            await catalog.topic(topic)
        del names.topics["gone"]
        service = GroupService(store, catalog, Wakeups())
        with pytest.raises(NotFound):
            await service.commit("readers", "gone", [(0, 3)])
        assert names.groups == {}
        await service.commit("readers", "orders", [(0, 3)])
        assert (names.groups.keys(), store.calls) == ({"readers"}, [{10: 3}])

    async def test_a_group_that_may_not_be_created_creates_no_topic(self) -> None:
        names = FakeNames()
        for catalog in (names.catalog(create_topics=True), names.catalog(create_topics=True, create_groups=True)):
            with pytest.raises(NotFound):
                await GroupService(Groups(), catalog, Wakeups()).commit("readers", "mistyped", [(0, 3)])
        assert (names.topics, names.groups) == ({}, {})

    @pytest.mark.parametrize(
        ("offsets", "field"),
        [([(2, 0)], "queues[0].queue"), ([(0, 1), (0, 2)], "queues[1].queue"), ([(0, -1)], "queues[0].offset")],
    )
    async def test_offsets_that_cannot_be(self, offsets: list[tuple[int, int]], field: str) -> None:
        with pytest.raises(InvalidArgument) as refused:
            await self.service(Groups()).commit("billing", "orders", offsets)
        assert refused.value.field == field

    async def test_seeking_tells_the_progress_of_that_topic_alone_and_wakes_who_waits(self) -> None:
        store, wakeups = Groups(), Wakeups()
        with wakeups.listen([1], 1) as event:
            states = await self.service(store, wakeups).seek("billing", "orders", 1, to=None, offset=4)
            assert event.is_set()
        assert [state.topic for state in states] == ["orders"]
        assert store.calls == [([11], None, 4)]

    @pytest.mark.parametrize(
        ("queue", "offset", "field"), [(2, None, "queue"), (None, 4, "queue"), (0, -1, "to.offset")]
    )
    async def test_places_that_cannot_be(self, queue: int | None, offset: int | None, field: str) -> None:
        with pytest.raises(InvalidArgument) as refused:
            await self.service(Groups()).seek("billing", "orders", queue, to=None, offset=offset)
        assert refused.value.field == field

    async def test_going_on_drops_the_reason_of_the_pause(self) -> None:
        store = Groups()
        await self.service(store).pause("billing", paused=True, reason="repair")
        await self.service(store).pause("billing", paused=False, reason="done")
        assert store.calls == [(True, "repair"), (False, "")]


class DeadLetters:
    """Redrives ten at a time of some dead letters."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.searches: list[DeadLetterSearch] = []

    async def find_dead_letters(self, search: DeadLetterSearch) -> DeadLetterPage:
        self.searches.append(search)
        return DeadLetterPage([], None)

    async def redrive(self, search: DeadLetterSearch, *, republish: bool) -> Redriven:
        self.searches.append(search)
        end = min(self.total, search.first + 10)
        count = end - search.first
        return Redriven(count, count, 0, 0, self.total, end if end < self.total else None)


class TestDeadLetters:
    def service(self, store: DeadLetters, wakeups: Wakeups | None = None) -> DeadLetterService:
        return DeadLetterService(store, FakeNames(groups=["billing"]).catalog(), wakeups or Wakeups())

    async def test_a_redrive_goes_on_until_the_end(self) -> None:
        service = self.service(DeadLetters(25))
        steps = [
            (step.redriven, step.total, last)
            async for step, last in service.redrive("billing", None, [], republish=False)
        ]
        assert steps[-1] == (25, 25, True)
        assert [last for *_, last in steps] == [False, False, True]

    async def test_a_redrive_of_some_offsets_ends_behind_the_last_of_them(self) -> None:
        store = DeadLetters(100)
        steps = [last async for _, last in self.service(store).redrive("billing", None, [12, 15], republish=False)]
        assert steps == [True]
        assert store.searches[0].first == 12

    async def test_what_is_redriven_wakes_its_group(self) -> None:
        wakeups = Wakeups()
        with wakeups.listen([1], 1) as event:
            async for _ in self.service(DeadLetters(1), wakeups).redrive("billing", None, [], republish=False):
                assert event.is_set()

    @pytest.mark.parametrize("token", ["-1", "x", "²", "9" * 70, str(1 << 63)])
    async def test_what_is_no_page_token(self, token: str) -> None:
        with pytest.raises(InvalidArgument) as refused:
            await self.service(DeadLetters(0)).page("billing", None, token, 10)
        assert refused.value.field == "page_token"


class Records:
    """Transactions as they are told."""

    def __init__(self, *details: TransactionDetail) -> None:
        self.details = {detail.summary.transaction_id: detail for detail in details}
        self.filters: list[TransactionFilter] = []

    async def transaction(self, transaction_id: bytes) -> TransactionDetail | None:
        return self.details.get(transaction_id)

    async def list_transactions(self, wanted: TransactionFilter) -> TransactionPage:
        self.filters.append(wanted)
        found = [detail.summary for detail in self.details.values()]
        found = [each for each in found if each.transaction_id > wanted.after]
        page = found[: wanted.limit]
        return TransactionPage(page, page[-1].transaction_id if len(found) > len(page) else None)

    async def list_decided(self, search: DecidedSearch) -> DecidedPage:
        raise AssertionError

    async def check_again(
        self, transaction_id: bytes, policy: CheckPolicy, operator: str, reason: str
    ) -> TransactionOutcome:
        return TransactionOutcome(transaction_id, TransactionState.PREPARED)


class Decisions:
    """Refuses, or notes the work."""

    def __init__(self, outcome: Any) -> None:
        self.outcome, self.work = outcome, list[Any]()

    async def decide(self, verdicts: Sequence[Any], may: object = None) -> list[Any]:
        self.work += verdicts
        return [self.outcome] * len(verdicts)


class TestTransactions:
    def service(self, records: Records, decisions: Decisions | None = None) -> TransactionOperations:
        names = FakeNames("orders")
        return TransactionOperations(records, decisions or Decisions(None), names.catalog(), Positions(names), POLICY)

    async def test_a_transaction_is_told_with_the_positions_of_its_messages(self) -> None:
        op = OpEntry(TransactionState.COMMITTED, VerdictSource.CHECK, 5, None, [InLog(10, 3)])
        detail = TransactionDetail(summary(1, TransactionState.COMMITTED), op=op)
        found, positions = await self.service(Records(detail)).transaction(ID)
        assert found is detail
        assert [(each.topic, each.offset) for each in positions] == [("orders", 3)]

    async def test_an_unknown_transaction(self) -> None:
        with pytest.raises(NotFound) as refused:
            await self.service(Records()).transaction(ID)
        assert refused.value.reason == "TRANSACTION_NOT_FOUND"

    async def test_pages_follow_one_another(self) -> None:
        service = self.service(Records(*[TransactionDetail(summary(number)) for number in (1, 2, 3)]))
        first, token = await service.undecided(Undecided(), 2, "")
        last, end = await service.undecided(Undecided(), 2, token)
        assert [each.prepared_at for each in (*first, *last)] == [101, 102, 103]
        assert end == ""

    @pytest.mark.parametrize("token", ["x", "1.zz", "1.00", f"-1.{bytes(16).hex()}"])
    async def test_what_is_no_page_token(self, token: str) -> None:
        with pytest.raises(InvalidArgument) as refused:
            await self.service(Records()).undecided(Undecided(), 0, token)
        assert refused.value.field == "page_token"

    @pytest.mark.parametrize("token", ["x", "1.zz", "1.00", f"-1.{bytes(16).hex()}", f"zz.{bytes(16).hex()}"])
    async def test_what_is_no_page_token_of_decided_ones(self, token: str) -> None:
        with pytest.raises(InvalidArgument) as refused:
            await self.service(Records()).decided(DecidedSearch(), 0, token)
        assert refused.value.field == "page_token"

    async def test_many_are_resolved_with_one_reason(self) -> None:
        records = Records(*[TransactionDetail(summary(number)) for number in range(1, 4)])
        decisions = Decisions("decided")
        wanted = Undecided(state=TransactionState.PARKED)
        steps = [
            replace(step)
            async for step in self.service(records, decisions).resolve_all(
                wanted, commit=False, operator="ann", reason=" gone ", dry_run=False
            )
        ]
        assert [(step.matched, step.resolved, step.left, step.done) for step in steps] == [(3, 3, 0, True)]
        assert {(work.commit, work.reason, work.operator) for work in decisions.work} == {(False, "gone", "ann")}

    async def test_those_of_sinks_are_left_to_their_epochs(self) -> None:
        decisions = Decisions("decided")
        of_sink = replace(summary(2), producer_group=SINK_GROUP)
        service = self.service(Records(TransactionDetail(summary(1)), TransactionDetail(of_sink)), decisions)
        wanted = Undecided(state=TransactionState.PREPARED)
        steps = service.resolve_all(wanted, commit=True, operator="ann", reason="paid", dry_run=False)
        assert [(step.matched, step.resolved, len(step.examples)) async for step in steps] == [(1, 1, 1)]
        assert [work.transaction_id for work in decisions.work] == [summary(1).transaction_id]

    async def test_those_that_others_decided_in_the_meantime_are_left(self) -> None:
        conflict = VerdictConflict("committed", state=int(TransactionState.COMMITTED))
        records = Records(TransactionDetail(summary(1)), TransactionDetail(summary(2)))
        service = self.service(records, Decisions(conflict))
        steps = service.resolve_all(
            Undecided(producer_group="shop"), commit=False, operator="ann", reason="gone", dry_run=False
        )
        assert [(step.matched, step.resolved, step.left) async for step in steps] == [(2, 0, 2)]

    async def test_a_dry_run_needs_no_reason_and_decides_nothing(self) -> None:
        decisions = Decisions("decided")
        service = self.service(Records(TransactionDetail(summary(1))), decisions)
        steps = service.resolve_all(Undecided(topic="orders"), commit=True, operator="", reason="", dry_run=True)
        assert [(step.matched, len(step.examples)) async for step in steps] == [(1, 1)]
        assert decisions.work == []

    async def test_all_at_once_are_not_resolved_by_a_slip(self) -> None:
        decisions = Decisions("decided")
        service = self.service(Records(TransactionDetail(summary(1))), decisions)
        steps = service.resolve_all(Undecided(), commit=True, operator="", reason="because", dry_run=False)
        with pytest.raises(InvalidArgument) as refused:
            await anext(steps)
        assert (refused.value.field, decisions.work) == ("state", [])

    async def test_many_need_a_reason(self) -> None:
        service = self.service(Records(TransactionDetail(summary(1))), Decisions("decided"))
        wanted = Undecided(prepared_before=1)
        with pytest.raises(InvalidArgument) as refused:
            await anext(service.resolve_all(wanted, commit=True, operator="", reason=" ", dry_run=False))
        assert refused.value.field == "reason"

    async def test_an_operator_decides_with_a_reason(self) -> None:
        decisions = Decisions("decided")
        records = Records(TransactionDetail(summary(1)))
        outcome: Any = await self.service(records, decisions).resolve(ID, commit=True, operator="ann", reason=" ok ")
        assert outcome == "decided"
        assert decisions.work == [VerdictWork(ID, True, VerdictSource.OPERATOR, "ok", "ann")]

    async def test_without_a_reason_nothing_is_decided(self) -> None:
        decisions = Decisions("decided")
        with pytest.raises(InvalidArgument) as refused:
            await self.service(Records(), decisions).resolve(ID, commit=True, operator="ann", reason="  ")
        assert (refused.value.field, decisions.work) == ("reason", [])

    async def test_the_opposite_verdict_is_refused(self) -> None:
        conflict = VerdictConflict("rolled back", state=int(TransactionState.ROLLED_BACK))
        with pytest.raises(VerdictConflict):
            service = self.service(Records(TransactionDetail(summary(1))), Decisions(conflict))
            await service.resolve(ID, commit=True, operator="ann", reason="ok")

    async def test_checking_again_decides_nothing(self) -> None:
        decisions = Decisions("decided")
        service = self.service(Records(TransactionDetail(summary(1))), decisions)
        outcome = await service.resolve(ID, commit=None, operator="ann", reason="ok")
        assert (outcome.state, decisions.work) == (TransactionState.PREPARED, [])


class Queries:
    """One message, and one page of messages."""

    def __init__(self, found: FoundMessage | None = None, following: tuple[int, int] | None = None) -> None:
        self.found, self.following = found, following
        self.searches: list[MessageSearch] = []
        self.deliveries: list[Any] = []

    async def find_message(self, transaction_id: bytes, position: int) -> FoundMessage | None:
        return self.found

    async def find_messages(self, search: MessageSearch) -> FoundPage:
        self.searches.append(search)
        return FoundPage([], self.following)

    async def deliveries_of(self, queue_id: int, offset: int) -> list[Any]:
        return self.deliveries or [(queue_id, offset)]


class TestQueries:
    def service(self, store: Queries, *details: TransactionDetail) -> MessageQueries:
        names = FakeNames("orders")
        return MessageQueries(store, Records(*details), names.catalog(), Positions(names))

    async def test_an_unknown_message(self) -> None:
        with pytest.raises(NotFound) as refused:
            await self.service(Queries()).timeline(ID, 0)
        assert refused.value.reason == "MESSAGE_NOT_FOUND"

    async def test_of_a_topic_that_is_not_known_any_more_only_who_may_see_everything_sees_a_message(self) -> None:
        names = FakeNames()
        found = FoundMessage(TransactionState.COMMITTED, place=InLog(10, 3))
        service = MessageQueries(Queries(found), Records(), names.catalog(), Positions(names))
        assert await service.message(ID, 0) is found
        with pytest.raises(NotFound):
            await service.message(ID, 0, lambda topic: topic != "secret")

    async def test_of_deliveries_to_a_group_that_is_gone_only_who_may_see_everything_sees_the_client(self) -> None:
        op = OpEntry(TransactionState.COMMITTED, VerdictSource.PRODUCER, 200, None, [InLog(10, 3)])
        detail = TransactionDetail(summary(1, TransactionState.COMMITTED), op=op)
        store = Queries(FoundMessage(TransactionState.COMMITTED))
        store.deliveries = [TimelineEvent(TimelineKind.DELIVERED, 300, client_id="till-1")]
        whole = await self.service(store, detail).timeline(ID, 0)
        hidden = await self.service(store, detail).timeline(ID, 0, None, lambda group: group != "secret")
        assert (whole[-1].client_id, hidden[-1].client_id) == ("till-1", "")
        assert whole[:-1] == hidden[:-1]

    async def test_a_page_begins_where_the_one_before_ended(self) -> None:
        store = Queries(following=(3, 255))
        wanted = Wanted("k")
        _, token = await self.service(store).messages("orders", wanted, page_size=0, page_token="")
        await self.service(store).messages("orders", wanted, page_size=0, page_token=token)
        assert [search.after for search in store.searches] == [(0, 0), (3, 255)]

    @pytest.mark.parametrize("token", ["x", "1", "1.2", "1.-1.0", "1.1." + "f" * 70])
    async def test_what_is_no_page_token(self, token: str) -> None:
        with pytest.raises(InvalidArgument) as refused:
            await self.service(Queries()).messages("orders", Wanted(), page_size=0, page_token=token)
        assert refused.value.field == "page_token"

    async def test_a_search_in_a_queue_begins_at_its_offset(self) -> None:
        store = Queries()
        wanted = Wanted(queue_no=0, offset=7)
        for token in ("", "1.0.3", "1.0.9"):
            await self.service(store).messages("orders", wanted, page_size=0, page_token=token)
        assert [(search.queue_no, search.after) for search in store.searches] == [(0, (0, 7)), (0, (0, 7)), (0, (0, 9))]

    @pytest.mark.parametrize(
        ("wanted", "field"),
        [(Wanted(queue_no=1), "queue"), (Wanted(offset=7), "queue"), (Wanted(queue_no=0, offset=-1), "offset")],
    )
    async def test_what_is_no_position(self, wanted: Wanted, field: str) -> None:
        with pytest.raises(InvalidArgument) as refused:
            await self.service(Queries()).messages("orders", wanted, page_size=0, page_token="")
        assert refused.value.field == field

    async def test_deliveries_are_those_of_its_place_in_the_log(self) -> None:
        op = OpEntry(TransactionState.COMMITTED, VerdictSource.PRODUCER, 200, None, [InLog(10, 3)])
        detail = TransactionDetail(summary(1, TransactionState.COMMITTED), op=op)
        events: list[Any] = await self.service(Queries(FoundMessage(TransactionState.COMMITTED)), detail).timeline(
            ID, 0
        )
        assert events[-1] == (10, 3)
