"""The metrics of several workers as one text."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from broker.metrics.listener import MetricsListener
from halfmq_cli.gathering import ANSWER_TIMEOUT, GatheredMetrics, merged

ONE = """# HELP a_total A.
# TYPE a_total counter
a_total{topic="x{y} # 1"} 1.0
# HELP b B.
# TYPE b gauge
b 2.0
"""
TWO = """# HELP b B.
# TYPE b gauge
b 3.0
# HELP a_total A.
# TYPE a_total counter
a_total{topic="z"} 4.0
"""


def test_samples_of_a_metric_come_together_with_their_worker() -> None:
    text = merged({1: ONE, 2: TWO})
    assert text.count("# TYPE a_total counter\n") == text.count("# HELP b B.\n") == 1
    found = {
        (each.name, *sorted(each.labels.items())): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }
    assert found == {
        ("a_total", ("topic", "x{y} # 1"), ("worker", "1")): 1,
        ("a_total", ("topic", "z"), ("worker", "2")): 4,
        ("b", ("worker", "1")): 2,
        ("b", ("worker", "2")): 3,
    }


def test_a_worker_that_stands_still_or_is_not_there_delays_no_answer_for_long() -> None:
    with GatheredMetrics("127.0.0.1:0", [1, 2, 3]) as gathered:
        frozen = Path(gathered.address_of(2).removeprefix("unix:"))
        with closing(MetricsListener(gathered.address_of(1), ONE.encode)), socket.socket(socket.AF_UNIX) as silent:
            silent.bind(str(frozen))
            silent.listen()
            for _ in range(3):
                began = time.monotonic()
                text = urlopen(f"http://{gathered.endpoint}/metrics", timeout=20).read().decode()
                assert time.monotonic() - began < 2 * ANSWER_TIMEOUT
                assert 'halfmq_worker_up{worker="1"} 1\n' in text
                assert 'halfmq_worker_up{worker="2"} 0\n' in text
                assert 'halfmq_worker_up{worker="3"} 0\n' in text
                assert 'b{worker="1"} 2.0\n' in text
    assert not frozen.parent.exists()
    assert not [each for each in threading.enumerate() if each.name == "halfmq-metrics"]


def test_many_scrapes_at_once_do_not_make_workers_look_gone() -> None:
    with GatheredMetrics("127.0.0.1:0", [1, 2]) as gathered:
        frozen = Path(gathered.address_of(2).removeprefix("unix:"))
        with closing(MetricsListener(gathered.address_of(1), ONE.encode)), socket.socket(socket.AF_UNIX) as silent:
            silent.bind(str(frozen))
            silent.listen()
            with ThreadPoolExecutor(8) as scraping:
                texts = [each.decode() for each in scraping.map(lambda _: gathered.render(), range(8))]
    assert [text.count('halfmq_worker_up{worker="1"} 1\n') for text in texts] == [1] * 8


def test_line_ends_of_other_alphabets_are_part_of_a_label() -> None:
    sample = '{name="x\u2028y\x85z"} 1.0'
    assert merged({1: f"# TYPE a gauge\na{sample}\n"}) == f'# TYPE a gauge\na{{worker="1",{sample[1:]}\n'
