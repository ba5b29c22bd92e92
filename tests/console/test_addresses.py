"""What addresses of pages and their forms say: filters, positions, counts; and what is shown for it."""

from __future__ import annotations

import re
from html import unescape
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from broker.console.rendering import shown_bytes
from console.shop import PATIENCE
from consumer_sdk import Consumer
from producer_sdk import Producer, Resolution, TransactionState

if TYPE_CHECKING:
    from console.shop import Shop


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ("/transactions?state=nothing", "prepared or parked"),
        ("/transactions?state=decided&source=nobody", "producer or check"),
        ("/transactions?state=decided&from=soon", "A time (UTC)"),
        ("/transactions?older=999999999d", "older"),
        ("/transactions/resolve?state=parked", "commit or rollback or check"),
        ("/transactions/resolve?state=decided&resolution=check", "are decided"),
        ("/transactions/resolve?resolution=check", "state, producer_group, topic"),
        ("/groups/billing/dead-letters/purge?before_offset=-1", "a number from 0"),
        ("/groups/billing/dead-letters/purge?before=soon", "A time (UTC)"),
        ("/messages?topic=orders&offset=1", "name it"),
        ("/messages?topic=orders&queue=2", "there is no queue 2"),
        ("/messages?topic=orders&queue=99999999999", "a number from 0"),
        ("/messages?topic=orders&sql=amount+%3E", "filter.sql"),
        ("/clients?kind=nothing", "producers or consumers"),
        ("/audit?order=random", "newest or oldest"),
        ("/audit?outcome=good", "allowed or failed"),
    ],
)
def test_a_filter_that_is_wrong_is_refused_and_not_left_out(shop: Shop, page: str, told: str) -> None:
    answer = shop.visitor().get(page)
    assert (answer.status, told in answer.text) == (400, True), answer.text


def test_messages_are_read_by_queue_and_offset_a_page_at_a_time(shop: Shop) -> None:
    shop.admin.create_topic("rolls", queues=2)
    with Producer(shop.broker.endpoint) as sending:
        for number in range(120):
            # One message group is in one queue.
            sending.send("rolls", f"roll {number}", message_group="bakery", tag="even" if number % 2 == 0 else "odd")
    (used,) = [queue for queue in shop.admin.topic_queues("rolls") if queue.max_offset]
    visitor = shop.visitor()
    view, found = f"/messages?topic=rolls&queue={used.queue}&offset=60", []
    while view:
        shown = visitor.get(view).text
        found.append(re.findall(r'<td class="content">roll (\d+)</td>', shown))
        following = re.search(r'rel="next" href="([^"]+)"', shown)
        view = unescape(following[1]) if following else ""
    assert [len(page) for page in found] == [50, 10]
    assert [int(number) for page in found for number in page] == list(range(60, 120))
    odd = visitor.get(f"/messages?topic=rolls&queue={used.queue}&offset=100&tags=odd").text
    assert re.findall(r'<td class="content">roll (\d+)</td>', odd) == [str(number) for number in range(101, 120, 2)]
    assert "None." in visitor.get(f"/messages?topic=rolls&queue={1 - used.queue}").text


def test_decided_transactions_are_found_by_who_decided_and_when(shop: Shop) -> None:
    first, second = shop.park("library", 2)
    for own in (first, second):
        shop.admin.resolve_transaction(own, Resolution.ROLLBACK, "it was closed")
    decided = shop.admin.list_decided_transactions(producer_group="library")
    times = {each.transaction_id: each.decided_at for each in decided}
    later = times[second]
    assert later is not None
    assert later != times[first]

    def shown(**filters: str) -> list[str]:
        query = urlencode({"state": "decided", "group": "library", **filters})
        text = shop.visitor().get(f"/transactions?{query}").text
        return [own for own in (second, first) if f"/transactions/{own}" in text]

    between = later.strftime("%Y-%m-%d %H:%M:%S.%f")
    assert shown() == [second, first]
    assert shown(source="operator") == [second, first]
    assert shown(source="producer") == []
    assert shown(until=between) == [first]
    assert shown(**{"from": between}) == [second]


def test_the_audit_is_read_from_a_time_on_and_in_either_order(shop: Shop) -> None:
    names = ["audited-1", "audited-2", "audited-3"]
    for name in names:
        shop.admin.create_group(name)
        shop.admin.pause_group(name, "it is audited")
    records = {each.resource: each for each in shop.admin.list_audit_records(call="AdminService/PauseGroup")}
    times = [records[f"group {name}"].happened_at for name in names]

    def shown(**filters: str) -> list[str]:
        text = shop.visitor().get(f"/audit?{urlencode({'call': 'AdminService/PauseGroup', **filters})}").text
        return re.findall(r"group (audited-\d)", text)

    start, end = (time.strftime("%Y-%m-%d %H:%M:%S.%f") for time in (times[0], times[2]))
    assert shown(**{"from": start}) == names[::-1]
    assert shown(**{"from": start, "order": "oldest"}) == names
    assert shown(**{"from": start, "until": end, "order": "oldest"}) == names[:2]


def test_dead_letters_are_filtered_and_those_that_match_delivered_again(shop: Shop) -> None:
    shop.bury("choosy", 4, properties=[{"amount": str(100 * number)} for number in range(4)])
    visitor = shop.visitor()
    view = f"/groups/choosy/dead-letters?{urlencode({'sql': 'amount > 150'})}"
    shown = visitor.get(view).text
    assert re.findall(r'name="offset" value="(\d+)"', shown) == ["2", "3"]
    assert "all that match the filter" in shown
    answer = visitor.post("/groups/choosy/dead-letters/redrive", page=view, sql="amount > 150")
    assert "2 delivered again" in visitor.get(answer.headers["location"]).text
    again = [letter.redriven_at is not None for letter in shop.admin.list_dead_letters("choosy")]
    assert again == [False, False, True, True]
    assert visitor.get("/groups/choosy/dead-letters?tags=a&sql=amount+%3D+1").status == 400
    assert visitor.get("/groups/choosy/dead-letters?sql=amount+%3D").status == 400


def test_dead_letters_are_deleted_up_to_a_time(shop: Shop) -> None:
    shop.bury("forgetful", 2)
    shop.bury("forgetful", 1)
    visitor = shop.visitor()
    third = list(shop.admin.list_dead_letters("forgetful"))[2].message.stored_at
    assert third is not None
    view = f"/groups/forgetful/dead-letters/purge?{urlencode({'before': third.strftime('%Y-%m-%d %H:%M:%S.%f')})}"
    shown = visitor.get(view).text
    assert "<strong>2</strong> dead letters" in shown
    fields = dict(re.findall(r'type="hidden" name="(before[a-z_]*)" value="([^"]*)"', shown))
    assert fields == {"before_offset": "2"}
    assert visitor.post("/groups/forgetful/dead-letters/purge", page=view, **fields).status == 303
    assert [letter.message.offset for letter in shop.admin.list_dead_letters("forgetful")] == [2]


def test_dead_letters_that_come_after_the_count_are_not_deleted(shop: Shop) -> None:
    shop.bury("hasty", 2)
    visitor, view = shop.visitor(), "/groups/hasty/dead-letters/purge"
    shown = visitor.get(view).text
    assert "<strong>2</strong> dead letters" in shown
    fields = dict(re.findall(r'type="hidden" name="(before[a-z_]*)" value="([^"]*)"', shown))
    assert fields == {"before_offset": "2"}
    shop.bury("hasty", 1)
    answer = visitor.post(view, page=view, **fields)
    assert "2 deleted." in visitor.get(answer.headers["location"]).text
    assert [letter.message.offset for letter in shop.admin.list_dead_letters("hasty")] == [2]


def test_what_was_parked_after_the_count_is_not_decided(shop: Shop) -> None:
    (early,) = shop.park("tardy", 1)
    visitor, view = shop.visitor(), "/transactions/resolve?group=tardy&resolution=rollback"
    counted = re.search(r'name="prepared_before" value="([^"]+)"', visitor.get(view).text)
    assert counted is not None
    late = shop.park("tardy", 1, already=1)
    decision = {"group": "tardy", "resolution": "rollback", "reason": "the shop was closed"}
    answer = visitor.post("/transactions/resolve", page=view, prepared_before=counted[1], **decision)
    assert answer.status == 303
    assert "1 of 1 were resolved" in visitor.get(answer.headers["location"]).text
    states = [shop.admin.get_transaction(own).state for own in (early, *late)]
    assert states == [TransactionState.ROLLED_BACK, TransactionState.PARKED]


def test_a_group_is_moved_in_one_queue_to_an_offset(shop: Shop) -> None:
    shop.admin.create_topic("parts", queues=2)
    with Producer(shop.broker.endpoint) as sending:
        for _ in range(10):
            sending.send("parts", "a wheel")
    shop.admin.create_group("garage")
    with Consumer(shop.broker.endpoint, "garage", ["parts"]):
        shop.until(lambda: len(shop.admin.group_progress("garage", "parts")) == 2)
    before = {each.queue: each.next_offset for each in shop.admin.group_progress("garage", "parts")}
    visitor = shop.visitor()
    answer = visitor.post("/groups/garage/seek", topic="parts", to="3", queue="1")
    assert "It was moved in queue 1 of parts." in visitor.get(answer.headers["location"]).text
    after = {each.queue: each.next_offset for each in shop.admin.group_progress("garage", "parts")}
    assert after == {0: before[0], 1: 3}
    for fields, told in (
        ({"to": "3"}, "say which one"),
        ({"to": "3", "queue": "2"}, "there is no queue 2"),
        ({"to": "3", "queue": str(1 << 40)}, "a number from 0"),
        ({"to": "-1", "queue": "1"}, "earliest, latest"),
    ):
        refused = visitor.post("/groups/garage/seek", topic="parts", **fields)
        assert (refused.status, told in refused.text) == (400, True), refused.text
    assert {each.queue: each.next_offset for each in shop.admin.group_progress("garage", "parts")} == after


def test_what_consumers_may_get_and_what_they_hold_is_on_both_pages(shop: Shop) -> None:
    shop.admin.create_topic("chests", queues=1)
    shop.admin.create_group("hoarders", start="earliest")
    visitor = shop.visitor()

    def figures(page: str) -> list[str]:
        row = re.search(r'<th scope="row">hoarder-1</th>.*?</tr>', visitor.get(page).text)
        return re.findall(r'<td class="n">([^<]*)</td>', row[0]) if row else []

    def told() -> bool:
        (client,) = shop.admin.list_clients(group="hoarders")
        assert client.credits is not None
        assert client.byte_credits is not None
        expected = [str(client.credits), shown_bytes(client.byte_credits), "6", "4"]
        return figures("/clients?group=hoarders") == figures("/groups/hoarders") == expected

    with Producer(shop.broker.endpoint, client_id="only-sends") as sending:
        for number in range(6):
            sending.send("chests", f"chest {number}")
        with Consumer(shop.broker.endpoint, "hoarders", ["chests"], client_id="hoarder-1", prefetch=20) as reading:
            got: list[Any] = []
            while len(got) < 6:
                got += reading.receive(6 - len(got), timeout=PATIENCE)
            reading.ack(got[:2])
            shop.until(lambda: list(shop.admin.list_clients(group="hoarders")))
            shop.until(told)
            # It has no stream: see docs/admin.md.
            assert "only-sends" not in visitor.get("/clients").text
            assert re.search(r'<td class="n">4</td><td></td></tr>', visitor.get("/groups/hoarders").text)
