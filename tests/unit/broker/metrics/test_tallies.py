"""Counters and histograms: what they add up, and how many names they tell apart."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from broker.metrics.gauges import Bounded
from broker.metrics.tallies import OTHER, Counter, Histogram

if TYPE_CHECKING:
    from prometheus_client.core import Metric


def samples_of(family: Metric) -> dict[tuple[str, ...], float]:
    """Values by name and labels."""
    return {(each.name, *each.labels.values()): each.value for each in family.samples}


def test_a_counter_adds_up_by_its_labels() -> None:
    counter = Counter("x_total", "X.", ["a", "b"])
    counter.add(("1", "2"))
    counter.add(("1", "2"), 3)
    counter.add(("1", "3"))
    assert samples_of(counter.family()) == {("x_total", "1", "2"): 4, ("x_total", "1", "3"): 1}


def test_of_ten_thousand_topics_a_thousand_are_told_apart_and_nothing_is_lost() -> None:
    counter = Counter("x_total", "X.", ["topic", "kind"], names=1, most=1000)
    for _ in range(2):
        for number in range(10_000):
            counter.add((f"t{number}", "normal"), 2)
    found = samples_of(counter.family())
    assert len(found) == 1001
    assert found["x_total", "t999", "normal"] == 4
    assert found["x_total", OTHER, "normal"] == 2 * 2 * 9000
    assert sum(found.values()) == 2 * 2 * 10_000


def test_names_are_told_apart_in_pairs() -> None:
    counter = Counter("x_total", "X.", ["topic", "group"], names=2, most=3)
    for number in range(100):
        counter.add(("t", f"g{number}"))
    assert len(samples_of(counter.family())) == 4


def test_a_histogram_has_cumulative_buckets_up_to_their_bounds() -> None:
    histogram = Histogram("x", "X.", ["a"], [1, 10])
    histogram.add_all(("l",), [0.5, 1, 2, 10, 11])
    assert samples_of(histogram.family()) == {
        ("x_bucket", "l", "1"): 2,
        ("x_bucket", "l", "10"): 4,
        ("x_bucket", "l", "+Inf"): 5,
        ("x_count", "l"): 5,
        ("x_sum", "l"): 24.5,
    }


def test_threads_lose_nothing() -> None:
    counter, histogram = Counter("x_total", "X.", ["a"]), Histogram("y", "Y.", [], [1])

    def work(_: int) -> None:
        for _ in range(10_000):
            counter.add(("same",))
            histogram.add((), 0.5)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert samples_of(counter.family()) == {("x_total", "same"): 40_000}
    assert samples_of(histogram.family())[("y_count",)] == 40_000


def test_of_what_is_sampled_the_largest_keep_their_names() -> None:
    values = {(f"g{number}",): float(number) for number in range(10_000)}
    found = dict(Bounded(1000, OTHER)(values))
    assert len(found) == 1001
    assert ("g9999",) in found
    assert ("g8999",) not in found
    assert found[OTHER,] == sum(range(9000))
    assert dict(Bounded(1000, OTHER).largest(values))[OTHER,] == 8999


def test_a_name_that_is_the_one_of_the_others_is_told_once() -> None:
    values = {(OTHER,): 9.0, ("a",): 3.0, ("b",): 2.0, ("c",): 1.0}
    assert Bounded(2, OTHER)(values) == [(("a",), 3.0), (("b",), 2.0), ((OTHER,), 10.0)]
    pairs = {(OTHER, OTHER): 9.0, (OTHER, "g"): 3.0, ("b", "g"): 2.0, ("c", "g"): 1.0}
    assert Bounded(1, OTHER)(pairs) == [((OTHER, "g"), 3.0), ((OTHER, OTHER), 12.0)]
