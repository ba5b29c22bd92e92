"""The pages with figures of everything: bounded lists, what is known of other brokers, figures that are not there."""

from __future__ import annotations

import re
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from broker.console.pages import cluster, overview
from broker.console.rendering import templates
from halfmq.v1 import admin_pb2 as pb

NOW = Timestamp(seconds=1_800_000_000)
FRAME = {"path": "/", "query": {}, "form_token": "t", "form_field": "f", "guarded": False, "signed_in": False}


class Visit:
    """Answers calls with what a test has prepared, and renders pages."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[Any] = []

    async def call(self, method: str, request: Any) -> Any:
        self.asked.append(request)
        return self.answers[method.rpartition("/")[2]]

    async def page(self, template: str, **values: Any) -> Any:
        return templates().get_template(template).render({**FRAME, **values})


def words(page: str) -> str:
    """The text of a page."""
    return " ".join(re.sub(r"<[^>]*>", " ", page.partition("<main")[2]).split())


async def brokers(whole: pb.GetOverviewResponse, *statuses: pb.BrokerStatus) -> str:
    visit = Visit(ListBrokers=pb.ListBrokersResponse(brokers=statuses, time=NOW), GetOverview=whole)
    return words(str(await cluster.brokers(visit)))  # type: ignore[arg-type]


def status(name: str, seconds_ago: int, **rest: Any) -> pb.BrokerStatus:
    return pb.BrokerStatus(broker_id=name, seen_at=Timestamp(seconds=NOW.seconds - seconds_ago), **rest)


async def test_of_other_brokers_their_last_report_is_told_and_of_its_own_what_failed() -> None:
    health = pb.BrokerHealth(ready=True)
    health.failed_rounds.add(name="retention", count=3)
    health.database_errors.add(name="lost", count=1)
    health.database_errors.add(name="retry", count=20_000)
    health.clock_difference.FromMilliseconds(-2500)
    shown = await brokers(
        pb.GetOverviewResponse(time=NOW),
        status("a", 2, alive=True),
        status("b", 1, alive=True, health=health),
        status("c", 90),
    )
    assert "a alive 2 s ago – –" in shown
    assert "b ready 1 s ago retention 3 lost 1, retry 20 000" in shown
    assert "c silent 1 min 30 s ago – –" in shown
    assert "are known of b, which serves this page" in shown
    assert "Clock ahead of this machine -2 s" in shown


async def test_a_broker_that_is_not_ready_says_so() -> None:
    shown = await brokers(pb.GetOverviewResponse(time=NOW), status("a", 1, alive=True, health=pb.BrokerHealth()))
    assert "a not ready 1 s ago none none" in shown


async def test_the_oldest_pending_transaction_and_what_retention_lacks() -> None:
    whole = pb.GetOverviewResponse(time=NOW)
    whole.age.FromSeconds(7)
    whole.retention_behind.FromSeconds(200)
    for group, prepared, ago in (("x", 1, 60), ("y", 2, 3600), ("z", 0, 0)):
        oldest = Timestamp(seconds=NOW.seconds - ago) if prepared else None
        whole.pending.add(producer_group=group, prepared=prepared, oldest_prepared_at=oldest)
    shown = await brokers(whole, status("a", 1))
    assert "Oldest pending transaction 1 h" in shown
    assert "Retention behind 3 min 20 s" in shown
    assert "Counted 7 s ago" in shown


async def test_figures_that_are_not_counted_yet_are_left_out() -> None:
    shown = await brokers(pb.GetOverviewResponse(), status("a", 1))
    assert "Counting. Look again" in shown
    assert "halfmq doctor examines the rest" in shown


async def test_a_page_waits_for_a_tenth_of_a_second() -> None:
    visit = Visit(GetOverview=pb.GetOverviewResponse())
    assert await overview.counted(visit) is None  # type: ignore[arg-type]
    assert visit.asked[0].wait.ToMilliseconds() == 100


async def test_of_many_groups_some_are_listed_and_the_others_counted() -> None:
    whole = pb.GetOverviewResponse(time=NOW, dead_letters=999, dead_letter_groups=140)
    for number in range(130):
        whole.pending.add(producer_group=f"p{number:03}", prepared=1, parked=number)
    for number in range(100):
        whole.dead_letters_by_group.add(group=f"g{number:03}", kept=200 - number)
    shown = words(str(await overview.overview(Visit(GetOverview=whole))))  # type: ignore[arg-type]
    assert "999 dead letters of 140 groups" in shown
    assert "p030" in shown
    assert "p029" not in shown
    assert "30 more groups have some" in shown
    assert "g019 181" in shown
    assert "g020" not in shown
    assert "120 more in the list of groups" in shown
