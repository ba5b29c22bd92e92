"""The console in a real Chromium: every page, decisions, dead letters, charts; on a phone, in the dark."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select

from console.browsing import text_of, wait
from console.shop import EVIL, PATIENCE, Shop
from consumer_sdk import Consumer
from producer_sdk import Producer, TransactionState
from support.chromium import need_chromium, open_browser

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGES = [
    "/",
    "/transactions",
    "/transactions?state=parked&group=shop&older=1s",
    "/transactions?state=decided",
    "/transactions?state=committed&source=producer&from=2026-01-01",
    "/transactions/resolve?state=parked&resolution=check",
    "/topics",
    "/topics/orders",
    "/topics/%25DLQ%25billing",
    "/groups",
    "/groups/billing",
    "/groups/billing/dead-letters",
    "/groups/billing/dead-letters/purge",
    "/messages",
    "/messages?topic=orders&key=o-1",
    "/messages?topic=orders",
    "/messages?topic=orders&queue=1&offset=1&tags=committed",
    "/clients",
    "/brokers",
    "/audit",
    "/audit?from=2026-01-01&order=oldest",
]


def looked_at(shop: Shop) -> list[str]:
    """All pages, also those of a transaction and of a message."""
    return [*PAGES, f"/transactions/{shop.committed}", f"/messages/{shop.committed}"]


def test_every_page_is_shown_without_an_error_and_asks_nobody_else(shop: Shop, browser: Any) -> None:
    # What was said of pages before.
    browser.get_log("browser")
    for page in looked_at(shop):
        browser.get(shop.url + page)
        assert browser.title.endswith("· halfmq"), page
        assert "Refused" not in browser.title, text_of(browser)
        # What is in messages, reasons and names is shown, and does not run.
        assert browser.execute_script("return window.pwned") is None
        asked = browser.execute_script("return performance.getEntriesByType('resource').map(each => each.name)")
        assert all(each.startswith(shop.url) for each in asked), asked
        assert browser.get_log("browser") == []


def test_what_clients_write_is_shown_as_it_is(shop: Shop, browser: Any) -> None:
    browser.get(f"{shop.url}/groups/billing/dead-letters")
    assert EVIL in text_of(browser)
    browser.get(f"{shop.url}/messages?topic=orders")
    assert EVIL in text_of(browser)
    browser.get(f"{shop.url}/messages/{shop.committed}")
    assert "00 01 ff 20" in text_of(browser)


def test_the_overview_tells_what_is_in_doubt_and_its_charts_move(shop: Shop, browser: Any) -> None:
    browser.get(shop.url)
    # Looked at within one look: the table is replaced every few seconds.
    wait(browser, lambda page: page.find_element(By.XPATH, "//tr[th/a[text()='shop']]/td[3]").text.isdigit())
    chart = browser.find_element(By.CSS_SELECTOR, "[data-figures]")
    wait(browser, lambda _: int(chart.get_attribute("data-points") or 0) >= 2)
    assert len(browser.find_elements(By.CSS_SELECTOR, ".chart canvas")) == 2


def test_the_overview_and_the_list_of_groups_lead_to_a_groups_dead_letters(shop: Shop, browser: Any) -> None:
    shop.admin.create_topic("returns", queues=1)
    shop.admin.create_group("returning", max_attempts=1, start="earliest")
    with Producer(shop.broker.endpoint) as sending, Consumer(shop.broker.endpoint, "returning", ["returns"]) as reading:
        sending.send("returns", "broken")
        reading.nack(reading.receive(1, timeout=PATIENCE), reason="it is not ours")
    browser.get(shop.url)

    def follow(page: Any) -> bool:
        """Within one look: the table is replaced every few seconds."""
        (row,) = page.find_elements(By.XPATH, "//table[@aria-labelledby='dead-letters']//tr[th='returning']") or [None]
        if row is None or row.find_element(By.TAG_NAME, "td").text != "1":
            return False
        row.find_element(By.LINK_TEXT, "returning").click()
        return True

    wait(browser, follow)
    wait(browser, lambda page: page.title.startswith("Dead letters of returning"))
    assert "it is not ours" in text_of(browser)
    browser.get(f"{shop.url}/groups?from=return")
    letters = browser.find_element(By.XPATH, "//tr[th='returning']/td/a[contains(@href, 'dead-letters')]")
    assert letters.text == "1"
    assert letters.get_attribute("aria-label") == "dead letters of returning: 1"


def test_the_page_of_brokers_tells_the_health_of_its_own_and_of_the_database(shop: Shop, browser: Any) -> None:
    browser.get(f"{shop.url}/brokers")
    wait(browser, lambda page: "Retention behind" in text_of(page))
    # In one look: the page is replaced every few seconds.
    cells, facts = browser.execute_script(
        "const text = each => each.textContent.trim();"
        "return [[...document.querySelectorAll('tbody tr > *')].map(text), Object.fromEntries("
        "[...document.querySelectorAll('dt')].map(each => [text(each), text(each.nextElementSibling)]))]"
    )
    assert cells[1] == "ready"
    assert re.fullmatch(r"\d+ (ms|s) ago", cells[2])
    assert cells[3] == "none"
    # A lock that was not free in time, on a busy machine.
    assert re.fullmatch(r"none|retry \d+", cells[4])
    assert facts["Database"].startswith("SQLite")
    assert re.fullmatch(r"-?\d+ (ms|s)", facts["Clock ahead of this machine"])
    assert facts["Retention behind"] == "by nothing"
    assert "halfmq doctor examines the rest" in text_of(browser)


def test_a_transaction_is_decided_with_a_reason_and_shows_its_whole_way(shop: Shop, browser: Any) -> None:
    (own,) = shop.park("kiosk", 1)
    browser.get(f"{shop.url}/transactions?state=parked")
    browser.find_element(By.LINK_TEXT, own).click()
    wait(browser, lambda page: own in page.title)
    shown = text_of(browser)
    assert "parked of producer group kiosk" in shown
    assert shown.count("unknown") >= 2
    assert '"order": 0' in shown
    browser.find_element(By.NAME, "reason").send_keys("it is in the orders table")
    browser.find_element(By.NAME, "operator").send_keys("ada")
    browser.find_element(By.XPATH, "//button[text()='Commit']").click()
    wait(browser, lambda page: "It is COMMITTED now." in text_of(page))
    shown = text_of(browser)
    assert "it is in the orders table" in shown
    for event in ("prepared", "check sent", "parked", "committed", "released"):
        assert event in shown
    whole = shop.admin.get_transaction(own)
    assert whole.state is TransactionState.COMMITTED
    assert [(each.operator, each.reason) for each in whole.operator_actions] == [("ada", "it is in the orders table")]


def test_a_consumers_ack_is_on_the_page_of_its_transaction(shop: Shop, browser: Any) -> None:
    browser.get(f"{shop.url}/transactions/{shop.committed}")
    shown = text_of(browser)
    assert "delivered" in shown
    assert "billing-1" in shown
    assert "acked" in shown


def test_many_are_counted_before_they_are_decided(shop: Shop, browser: Any) -> None:
    parked = shop.park("closed", 5)
    browser.get(f"{shop.url}/transactions?state=parked&group=closed")
    browser.find_element(By.TAG_NAME, "summary").click()
    Select(browser.find_element(By.NAME, "resolution")).select_by_value("rollback")
    browser.find_element(By.XPATH, "//button[text()='Count them']").click()
    wait(browser, lambda page: "Nothing was changed." in text_of(page))
    assert {shop.admin.get_transaction(own).state for own in parked} == {TransactionState.PARKED}
    assert "5 transactions match of producer group closed" in text_of(browser)
    # What was counted has an address.
    browser.get(browser.current_url)
    assert "5 transactions match of producer group closed" in text_of(browser)
    browser.find_element(By.NAME, "reason").send_keys("the shop was closed")
    browser.find_element(By.XPATH, "//button[text()='Roll back']").click()
    wait(browser, lambda page: "5 of 5 were resolved" in text_of(page))
    assert browser.current_url.endswith("/transactions?state=parked&group=closed")
    assert {shop.admin.get_transaction(own).state for own in parked} == {TransactionState.ROLLED_BACK}


def test_dead_letters_are_delivered_again_and_deleted_with_their_progress(shop: Shop, browser: Any) -> None:
    browser.get(f"{shop.url}/groups/billing/dead-letters")
    boxes = browser.find_elements(By.NAME, "offset")
    assert len(boxes) == 4
    boxes[0].click()
    browser.find_element(By.XPATH, "//button[text()='Deliver again']").click()
    told = browser.find_elements(By.CSS_SELECTOR, ".progress")
    wait(browser, lambda _: told[0].text == "1 delivered again, 0 left as they are.")
    letters = list(shop.admin.list_dead_letters("billing"))
    assert [letter.redriven_at is not None for letter in letters] == [True, False, False, False]


def counted(shop: Shop, browser: Any, group: str, before_offset: str = "") -> None:
    """Has the dead letters of a group counted that are to be deleted."""
    browser.get(f"{shop.url}/groups/{group}/dead-letters")
    browser.find_element(By.NAME, "before_offset").send_keys(before_offset)
    browser.find_element(By.XPATH, "//button[text()='Count them']").click()
    wait(browser, lambda page: "Nothing was changed." in text_of(page))


def test_dead_letters_are_counted_before_they_are_deleted(shop: Shop, browser: Any) -> None:
    shop.bury("careless", 4)
    counted(shop, browser, "careless", before_offset="2")
    assert "2 dead letters of careless below offset 2" in text_of(browser)
    told = browser.find_element(By.CSS_SELECTOR, ".progress")
    browser.find_element(By.XPATH, "//button[text()='Delete']").click()
    asking = wait(browser, lambda page: page.switch_to.alert)
    assert asking.text == "Delete 2 dead letters of careless? They cannot be had back."
    asking.dismiss()
    assert told.text == ""
    assert len(list(shop.admin.list_dead_letters("careless"))) == 4
    browser.find_element(By.XPATH, "//button[text()='Delete']").click()
    wait(browser, lambda page: page.switch_to.alert).accept()
    wait(browser, lambda _: told.text == "2 deleted.")
    assert [letter.message.offset for letter in shop.admin.list_dead_letters("careless")] == [2, 3]


def test_without_scripts_the_result_is_told_on_the_page(shop: Shop) -> None:
    shop.admin.create_group("quiet")
    visitor = shop.visitor()
    for action, told in (("redrive", "0 delivered again, 0 left as they are."), ("purge", "0 deleted.")):
        answer = visitor.post(f"/groups/quiet/dead-letters/{action}", before_offset="0")
        assert answer.status == 303
        assert told in visitor.get(answer.headers["location"]).text


def test_a_group_is_paused_resumed_and_moved(shop: Shop, browser: Any) -> None:
    browser.get(f"{shop.url}/groups/billing")
    browser.find_element(By.NAME, "reason").send_keys("the books are closed")
    browser.find_element(By.XPATH, "//button[text()='Pause']").click()
    wait(browser, lambda page: "It is paused." in text_of(page))
    assert shop.admin.get_group("billing").pause_reason == "the books are closed"
    browser.find_element(By.XPATH, "//button[text()='Resume']").click()
    wait(browser, lambda page: "It is delivered to again." in text_of(page))
    browser.find_element(By.NAME, "to").send_keys("latest")
    browser.find_element(By.XPATH, "//button[text()='Move']").click()
    wait(browser, lambda page: "It was moved in orders." in text_of(page))
    assert {each.lag for each in shop.admin.group_progress("billing", "orders")} == {0}


def test_lists_go_on_by_themselves(shop: Shop, browser: Any) -> None:
    browser.get(f"{shop.url}/groups?from=later")
    shop.admin.create_group("later-than-others")
    wait(browser, lambda page: "later-than-others" in text_of(page))


def test_a_list_that_goes_on_keeps_the_focus_and_what_was_scrolled(shop: Shop, browser: Any) -> None:
    browser.set_window_size(600, 700)
    try:
        browser.get(f"{shop.url}/transactions?state=decided")
        link = browser.find_element(By.CSS_SELECTOR, "#live a").text
        browser.execute_script(
            "const live = document.getElementById('live'); live.dataset.old = 'yes'; live.querySelector('a').focus();"
            "live.querySelector('.scroll').scrollLeft = 40"
        )
        wait(browser, lambda page: not page.find_element(By.ID, "live").get_attribute("data-old"))
        wait(browser, lambda page: page.switch_to.active_element.text == link)
        assert browser.execute_script("return document.querySelector('#live .scroll').scrollLeft") == 40
    finally:
        browser.set_window_size(1300, 900)


def test_a_list_that_cannot_go_on_says_since_when(shop: Shop, browser: Any) -> None:
    browser.get(f"{shop.url}/groups")
    told = browser.find_element(By.ID, "away")
    assert not told.is_displayed()
    browser.set_network_conditions(offline=True, latency=0, throughput=0)
    try:
        wait(browser, lambda _: told.is_displayed())
        assert re.search(r"does not answer. What is shown is as it was at \d\d:\d\d:\d\d", told.text)
    finally:
        browser.delete_network_conditions()
    wait(browser, lambda _: not told.is_displayed())
    browser.get_log("browser")


def test_an_address_without_a_page_leads_on(shop: Shop, browser: Any) -> None:
    browser.get(f"{shop.url}/nothing")
    assert "There is no page '/nothing'" in text_of(browser)
    assert browser.find_elements(By.TAG_NAME, "nav")
    assert shop.visitor().get("/nothing").status == 404


def test_the_lines_of_a_chart_are_told_apart_without_their_colours(shop: Shop, browser: Any) -> None:
    browser.get(shop.url)
    wait(browser, lambda page: page.find_element(By.CSS_SELECTOR, "[data-now=parked]").text.isdigit())
    keys = browser.find_elements(By.CSS_SELECTOR, "figcaption .key")
    assert [each.text for each in keys] == ["pending", "parked"]
    assert [each.value_of_css_property("border-bottom-style") for each in keys] == ["solid", "dashed"]


def test_what_is_refused_says_why(shop: Shop, browser: Any) -> None:
    browser.get(f"{shop.url}/topics/nothing")
    assert "TOPIC_NOT_FOUND" in text_of(browser)
    browser.get(f"{shop.url}/transactions?older=soon")
    assert "An age is such as 30s" in text_of(browser)


def test_every_field_and_table_has_a_name(shop: Shop, browser: Any) -> None:
    for page in looked_at(shop):
        browser.get(shop.url + page)
        unnamed = browser.execute_script(
            "return [...document.querySelectorAll('input:not([type=hidden]), select, button, progress, meter')]"
            ".filter(each => !(each.labels && each.labels.length) && !each.getAttribute('aria-label')"
            " && !each.textContent.trim() && each.tagName != 'PROGRESS').map(each => each.outerHTML)"
        )
        assert unnamed == [], page
        nameless = browser.execute_script(
            "const name = each => document.getElementById(each.getAttribute('aria-labelledby'))?.textContent.trim();"
            "return [...document.querySelectorAll('table, .scroll')].filter(each => !name(each))"
            ".map(each => each.outerHTML)"
        )
        assert nameless == [], page
        assert all(each.get_attribute("tabindex") == "0" for each in browser.find_elements(By.CLASS_NAME, "scroll"))
        assert len(browser.find_elements(By.TAG_NAME, "h1")) == 1


@pytest.fixture(params=["phone", "dark"])
def other_browser(request: pytest.FixtureRequest) -> Iterator[Any]:
    need_chromium()
    made = open_browser(dark=request.param == "dark")
    if request.param == "phone":
        metrics = {"width": 390, "height": 800, "deviceScaleFactor": 2, "mobile": True}
        made.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    else:
        features = [{"name": "prefers-color-scheme", "value": "dark"}]
        made.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    made.appearance = request.param
    yield made
    made.quit()


def test_pages_fit_a_phone_and_the_dark(shop: Shop, other_browser: Any) -> None:
    for page in looked_at(shop):
        other_browser.get(shop.url + page)
        wide = other_browser.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, page
        ground = other_browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        light = int(ground.removeprefix("rgb(").split(",")[0]) > 128
        assert light is (other_browser.appearance == "phone"), page
