"""The judge of histories passes what is right and finds every kind of wrong that is seeded."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from faults.client import COMMITTED, PARKED, PREPARED, ROLLED_BACK
from faults.history import MARGIN, Call, Delivery, Entry, Findings, History, Outcome, Place, Spent, judge
from faults.load import place_of
from halfmq.v1 import message_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

OK, FAILED, UNKNOWN = Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN
MAX_CHECKS = 3
LEASE = 60.0


class Story:
    """A history and findings that fit together, to be spoilt."""

    def __init__(self) -> None:
        self.history = History()
        self.states: dict[str, int | None] = {}
        self.log: dict[int, list[tuple[int, Entry]]] = {0: [], 1: []}
        self.checks: dict[str, Spent] = {}
        self.unread = 0
        self.leases_kept = True
        self.transaction("a", commit=OK)
        self.transaction("b", rollback=OK)
        self.transaction("c", commit=OK)
        self.transaction("d")
        self.transaction("e", commit=UNKNOWN, state=COMMITTED)
        self.transaction("f", commit=UNKNOWN, state=PREPARED)
        self.transaction("g", prepare=UNKNOWN, state=None)
        self.transaction("h", prepare=UNKNOWN, rollback=UNKNOWN, state=ROLLED_BACK)
        self.transaction("i", queue=1, commit=OK)
        self.transaction("j", commit=OK)
        self.check("j", 1, 3, spent=3)  # the second one died with its broker
        self.transaction("k", state=PARKED)
        self.check("k", 1, 2, 3, spent=3)
        self.transaction("l", rollback=OK)
        self.check("l", 1, spent=1)
        self.transaction("m", commit=UNKNOWN, state=PARKED)
        self.check("m", 3, spent=3)
        self.send("s")
        self.send("t", outcome=UNKNOWN)
        self.send("u", outcome=UNKNOWN, kept=False)
        for queue in self.log:
            self.deliver(queue)

    def transaction(
        self,
        name: str,
        *,
        prepare: Outcome = OK,
        commit: Outcome | None = None,
        rollback: Outcome | None = None,
        state: int | None = 0,
        queue: int = 0,
    ) -> None:
        calls: list[tuple[Call, Outcome | None]] = [("prepare", prepare), ("commit", commit), ("rollback", rollback)]
        for call, outcome in calls:
            if outcome is not None:
                self.history.end(self.history.begin(name, call, name.encode()), outcome)
        if state == 0:
            state = COMMITTED if commit else ROLLED_BACK if rollback else PREPARED
        self.states[name] = state
        if state == COMMITTED:
            self.release(name, queue)

    def send(self, name: str, *, outcome: Outcome = OK, kept: bool = True) -> None:
        place: Place = (0, len(self.log[0]))
        operation = self.history.begin(name, "send", name.encode())
        self.history.end(operation, outcome, place if outcome is OK else None)
        self.states[name] = COMMITTED if kept else None
        if kept:
            self.release(name)

    def check(self, name: str, *arrived: int, spent: int) -> None:
        for number in arrived:
            self.history.check(name, number)
        self.checks[name] = Spent(spent, range(1, spent + 1))

    def take(self, name: str) -> None:
        """Removes an entry of queue 0, as if it had never been released."""
        names = [entry.transaction_id for _, entry in self.log[0] if entry.transaction_id != name]
        self.log[0].clear()
        self.history.deliveries = [each for each in self.history.deliveries if each.place[0] != 0]
        for each in names:
            self.release(each)
        self.deliver(0)

    def release(self, name: str, queue: int = 0) -> None:
        self.log[queue].append((len(self.log[queue]), Entry(name, name.encode())))

    def deliver(self, queue: int, first: int = 0, attempt: int = 1) -> None:
        for offset, entry in self.log[queue][first:]:
            delivery = self.history.deliver(
                (queue, offset), entry, attempt, f"group {queue}", until=time.monotonic() + LEASE
            )
            self.history.leave([delivery])
            self.history.confirm(delivery)

    def hold(self, lease: float = LEASE) -> Delivery:
        """One more delivery of a message that was delivered before, to a consumer that has asked already."""
        (first,) = [each for each in self.history.deliveries if each.place == (1, 0)][:1]
        group, until = first.message_group, time.monotonic() + lease
        return self.history.deliver(first.place, first.entry, first.attempt + 1, group, first.arrived, until)

    def judge(self) -> list[str]:
        heads = {queue: len(entries) + self.unread for queue, entries in self.log.items()}
        found = Findings(self.states, self.log, heads, self.checks, MAX_CHECKS, leases_kept=self.leases_kept)
        return judge(self.history, found)


def test_a_right_history_passes() -> None:
    assert Story().judge() == []


def test_a_delivery_may_be_repeated_until_it_is_acknowledged() -> None:
    story = Story()
    for delivery in story.history.deliveries:
        delivery.acknowledged = None
    for queue in story.log:
        story.deliver(queue, attempt=2)
    assert story.judge() == []


def test_an_answer_may_be_repeated_when_its_fate_is_unknown() -> None:
    story = Story()
    repeated = story.history.begin("j", "commit")
    story.history.end(repeated, UNKNOWN)
    assert story.judge() == []


def test_messages_of_no_message_group_may_come_in_any_order() -> None:
    story = Story()
    for delivery in story.history.deliveries:
        delivery.message_group = ""
    deliver_in_the_wrong_order(story)
    assert story.judge() == []


def test_commits_at_the_same_time_may_lie_in_any_order() -> None:
    story = Story()
    for name in ("x", "y"):
        story.transaction(name)
    commits = [story.history.begin(name, "commit") for name in ("x", "y")]
    for name, commit in zip(("y", "x"), commits, strict=True):
        story.history.end(commit, OK)
        story.release(name)
        story.states[name] = COMMITTED
    story.deliver(0, first=len(story.log[0]) - 2)
    assert story.judge() == []


def test_what_was_on_its_way_when_its_lease_ended_may_arrive_late() -> None:
    story = Story()
    asked = story.history.deliveries[0].arrived
    for delivery in list(story.history.deliveries):
        story.history.deliver(delivery.place, delivery.entry, 1, delivery.message_group, asked)
    assert story.judge() == []


def test_who_repeats_an_ack_may_be_told_that_another_one_has_done_it() -> None:
    story = Story()
    acknowledge_two_deliveries(story)
    story.history.deliveries[-1].repeated = True
    assert story.judge() == []


def test_a_message_may_come_again_when_its_lease_ends() -> None:
    story = Story()
    story.history.deliveries[-1].acknowledged = story.history.deliveries[-1].left = None
    story.history.deliveries[-1].until = time.monotonic() + MARGIN / 2
    story.hold()
    assert story.judge() == []


def test_what_was_left_before_another_one_came_may_be_free() -> None:
    story = Story()
    story.history.leave([story.hold()])
    story.hold()
    assert not [wrong for wrong in story.judge() if "live lease" in wrong]


def test_an_ack_whose_lease_ended_may_have_had_its_effect_though_it_is_refused() -> None:
    """Its COMMIT was in doubt, and the broker looked again when the lease was over."""
    story = Story()
    refuse_an_ack(story, "RECEIPT_GONE", late=True)
    assert story.judge() == []


def test_leases_are_not_judged_where_clocks_are_set() -> None:
    story = Story()
    refuse_an_ack(story, "RECEIPT_STALE")
    story.hold()
    story.hold()
    story.leases_kept = False
    assert story.judge() == []


def test_delayed_messages_lie_in_the_order_of_their_times() -> None:
    story = Story()
    swap_sent_messages(story)
    found = Findings({}, story.log, delayed=[0])
    assert not [wrong for wrong in judge(story.history, found) if "reordered" in wrong]


def lose_an_acknowledged_commit(story: Story) -> None:
    story.states["i"] = PREPARED
    story.log[1].clear()
    del story.history.deliveries[-1]


def lose_a_prepare(story: Story) -> None:
    story.states["d"] = None


def forget_a_rollback(story: Story) -> None:
    story.states["b"] = PREPARED


def release_what_was_rolled_back(story: Story) -> None:
    story.states["b"] = COMMITTED
    story.release("b", 1)
    story.deliver(1, first=1)


def release_what_is_open(story: Story) -> None:
    story.states["d"] = COMMITTED
    story.release("d", 1)
    story.deliver(1, first=1)


def deliver_what_is_open(story: Story) -> None:
    story.history.deliver((1, 1), Entry("d", b"d"), 1)


def release_what_nobody_prepared(story: Story) -> None:
    story.release("stranger", 1)
    story.deliver(1, first=1)


def release_twice(story: Story) -> None:
    story.release("a", 1)
    story.deliver(1, first=1)


def change_a_body(story: Story) -> None:
    story.log[1][0] = (0, Entry("i", b"j"))
    story.history.deliveries[-1].entry = Entry("i", b"j")


def disagree_about_an_unknown_commit(story: Story) -> None:
    story.states["f"] = COMMITTED


def skip_an_offset(story: Story) -> None:
    story.log[0][-1] = (7, story.log[0][-1][1])


def read_less_than_the_head_says(story: Story) -> None:
    story.unread = 1


def swap_acknowledged_commits(story: Story) -> None:
    (_, first), (_, second) = story.log[0][:2]
    story.log[0][:2] = [(0, second), (1, first)]
    for delivery, (_, entry) in zip(story.history.deliveries, story.log[0], strict=False):
        delivery.entry = entry


def deliver_in_the_wrong_order(story: Story) -> None:
    story.history.deliveries[:2] = reversed(story.history.deliveries[:2])


def deliver_from_another_queue(story: Story) -> None:
    story.history.deliveries[-1].message_group = "group 0"


def acknowledge_two_deliveries(story: Story) -> None:
    """Two consumers hold a message, and both are told that it is settled."""
    second = story.hold(lease=0)
    story.history.leave([second])
    story.history.confirm(second)


def acknowledge_two_under_leases(story: Story) -> None:
    """As before; both may have repeated it, but under their leases."""
    acknowledge_two_deliveries(story)
    for delivery in story.history.deliveries:
        delivery.repeated = True
    story.history.deliveries[-1].until = time.monotonic() + LEASE


def deliver_to_several(story: Story) -> None:
    """Six consumers have one message, and none of them is done with it."""
    for _ in range(6):
        story.hold()
    story.history.deliveries[-1].acknowledging = True


def deliver_before_the_lease_ends(story: Story) -> None:
    """One has it, another one gets it and is done before the first one is."""
    first, second = story.hold(), story.hold()
    story.history.leave([second])
    story.history.confirm(second)
    story.history.leave([first])


def refuse_the_only_ack(story: Story) -> None:
    """A message is delivered once, its ack is refused while its lease lasts, and it is never seen again."""
    refuse_an_ack(story, "RECEIPT_GONE")


def refuse_an_ack_for_good(story: Story) -> None:
    """As before, long after its lease; but for a reason that tells that it had no effect."""
    refuse_an_ack(story, "RECEIPT_MALFORMED", late=True)


def refuse_an_ack(story: Story, reason: str, *, late: bool = False) -> None:
    (only,) = [each for each in story.history.deliveries if each.place == (1, 0)]
    only.acknowledged = None
    only.until = time.monotonic() + (0 if late else LEASE)
    story.history.refuse(only, reason)


def deliver_again_after_the_ack(story: Story) -> None:
    story.deliver(1, attempt=2)


def never_deliver(story: Story) -> None:
    del story.history.deliveries[0]


def never_acknowledge(story: Story) -> None:
    story.history.deliveries[0].acknowledging = False


def lose_a_commit_from_a_check(story: Story) -> None:
    story.states["j"] = PARKED
    story.take("j")


def undo_a_commit_from_a_check(story: Story) -> None:
    story.states["j"] = ROLLED_BACK
    story.take("j")


def decide_what_no_check_decided(story: Story) -> None:
    story.states["k"] = COMMITTED
    story.release("k", 1)
    story.deliver(1, first=1)


def ask_too_often(story: Story) -> None:
    story.check("k", MAX_CHECKS + 1, spent=MAX_CHECKS + 1)


def ask_twice_under_one_number(story: Story) -> None:
    story.history.check("l", 1)


def ask_without_counting(story: Story) -> None:
    story.history.check("l", 2)


def forget_all_checks(story: Story) -> None:
    del story.checks["l"]


def miss_a_check_in_the_history(story: Story) -> None:
    story.checks["j"] = Spent(3, [1, 3])


def park_too_early(story: Story) -> None:
    story.checks["m"] = Spent(2, [1, 2])
    story.history.checks = [check for check in story.history.checks if check.transaction_id != "m"]


def lose_a_sent_message(story: Story) -> None:
    story.states["s"] = None
    story.take("s")


def double_a_sent_message(story: Story) -> None:
    story.release("s", 1)
    story.deliver(1, first=1)


def keep_a_refused_message(story: Story) -> None:
    story.history.end(story.history.begin("v", "send", b"v"), FAILED)
    story.states["v"] = COMMITTED
    story.release("v", 1)
    story.deliver(1, first=1)


def forget_a_sent_message(story: Story) -> None:
    story.states["t"] = None


def tell_no_place(story: Story) -> None:
    send = next(each for each in story.history.operations if each.transaction_id == "s")
    send.place = place_of(message_pb2.LogPosition(offset=-1), may_be_unknown=False)


def test_a_place_may_be_unknown_only_where_that_is_said() -> None:
    unknown = message_pb2.LogPosition(offset=-1)
    assert place_of(unknown, may_be_unknown=True) is None
    known = message_pb2.LogPosition(queue=1, offset=7)
    assert {place_of(known, may_be_unknown=may) for may in (True, False)} == {(1, 7)}


def tell_another_place(story: Story) -> None:
    send = next(each for each in story.history.operations if each.transaction_id == "s")
    send.place = (1, 0)


def swap_sent_messages(story: Story) -> None:
    """A message that was sent, and confirmed, before another one was sent lies behind it."""
    story.send("w")
    story.log[0][-1], story.log[0][-3] = (
        (story.log[0][-1][0], story.log[0][-3][1]),
        (story.log[0][-3][0], story.log[0][-1][1]),
    )


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lose_an_acknowledged_commit, "i is PREPARED after prepare ok, commit ok"),
        (lose_a_prepare, "d is unknown to the broker after prepare ok"),
        (forget_a_rollback, "b is PREPARED after prepare ok, rollback ok"),
        (release_what_was_rolled_back, "b is COMMITTED after prepare ok, rollback ok"),
        (release_what_is_open, "d is COMMITTED after prepare ok"),
        (deliver_what_is_open, "delivered, but not in the log: 1/1"),
        (release_what_nobody_prepared, "nobody prepared stranger"),
        (release_twice, "doubled at 1/1"),
        (change_a_body, "another body at 1/0"),
        (disagree_about_an_unknown_commit, "f is COMMITTED, and not in the log"),
        (skip_an_offset, "queue 0: the offsets are not dense: 7 where 5 belongs"),
        (read_less_than_the_head_says, "queue 1: 1 messages below offset 2"),
        (lose_a_commit_from_a_check, "j is PARKED after prepare ok, commit ok"),
        (undo_a_commit_from_a_check, "j is ROLLED_BACK after prepare ok, commit ok"),
        (decide_what_no_check_decided, "k is COMMITTED after prepare ok"),
        (ask_too_often, "k had 4 checks; 3 are allowed"),
        (ask_twice_under_one_number, "l was asked about twice as check 1"),
        (ask_without_counting, "l was asked about, and it is not counted: [2]"),
        (forget_all_checks, "l was asked about, and it is not counted: [1]"),
        (miss_a_check_in_the_history, "j had 3 checks, and has a history of [1, 3]"),
        (park_too_early, "m is parked after 2 of 3 checks"),
        (lose_a_sent_message, "s is unknown to the broker after send ok"),
        (double_a_sent_message, "doubled at 1/1: s"),
        (keep_a_refused_message, "v is COMMITTED after send failed"),
        (forget_a_sent_message, "t is unknown to the broker, and in the log"),
        (tell_another_place, "s does not lie where its send said"),
        (tell_no_place, "s does not lie where its send said"),
        (swap_sent_messages, "reordered at 0/"),
        (swap_acknowledged_commits, "reordered at 0/1"),
        (deliver_in_the_wrong_order, "out of order in group 0: 0/0 came first after 0/1"),
        (deliver_from_another_queue, "out of order in group 0: 1/0 came first after 0/"),
        (deliver_again_after_the_ack, "delivered again after its ack was confirmed: 1/0"),
        (acknowledge_two_deliveries, "acknowledged 2 times: (1, 0)"),
        (acknowledge_two_under_leases, "acknowledged 2 times: (1, 0)"),
        (deliver_to_several, "delivered twice under live leases: (1, 0)"),
        (deliver_before_the_lease_ends, "delivered twice under live leases: (1, 0)"),
        (refuse_the_only_ack, "never delivered and handled: (1, 0)"),
        (refuse_the_only_ack, "refused under a live lease: (1, 0) RECEIPT_GONE"),
        (refuse_an_ack_for_good, "never delivered and handled: (1, 0)"),
        (never_deliver, "never delivered and handled: (0, 0)"),
        (never_acknowledge, "never delivered and handled: (0, 0)"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_seeded_fault_is_found(spoil: Callable[[Story], None], words: str) -> None:
    story = Story()
    spoil(story)
    assert any(words in found for found in story.judge()), story.judge()
