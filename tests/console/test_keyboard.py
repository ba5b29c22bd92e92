"""The console by keyboard alone, in a real Chromium."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from console.browsing import text_of, wait
from producer_sdk import TransactionState

if TYPE_CHECKING:
    from collections.abc import Callable

    from console.shop import Shop

FARTHEST = 80
"""Presses of Tab that lead anywhere on a page."""


def press(browser: Any, *keys: str) -> None:
    """Presses keys, wherever the focus is."""
    ActionChains(browser).send_keys(*keys).perform()


def tab_to(browser: Any, wanted: Callable[[Any], bool]) -> None:
    """Presses Tab until the focus is where it should be, and is seen there."""
    passed = []
    for _ in range(FARTHEST):
        press(browser, Keys.TAB)
        focused = browser.switch_to.active_element
        if wanted(focused):
            assert focused.value_of_css_property("outline-style") == "solid"
            return
        passed.append(focused.get_attribute("outerHTML")[:80])
    raise AssertionError(passed)


def named(name: str) -> Callable[[Any], bool]:
    return lambda focused: focused.get_attribute("name") == name


def reads(text: str) -> Callable[[Any], bool]:
    return lambda focused: focused.text == text


def test_it_works_by_keyboard(shop: Shop, browser: Any) -> None:
    browser.get(f"{shop.url}/transactions")
    body = browser.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.TAB)
    assert browser.switch_to.active_element.text == "To the content"
    names = []
    for _ in range(9):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        names.append(browser.switch_to.active_element.text)
    assert names[1:] == ["Overview", "Transactions", "Topics", "Groups", "Messages", "Clients", "Brokers", "Audit"]
    browser.switch_to.active_element.send_keys("/")
    focused = browser.switch_to.active_element
    assert focused.get_attribute("name") == "group"
    focused.send_keys("stall" + Keys.ENTER)
    wait(browser, lambda page: "group=stall" in page.current_url)
    outline = browser.execute_script(
        "const link = document.querySelector('nav a'); link.focus({focusVisible: true});"
        "return getComputedStyle(link).outlineStyle"
    )
    assert outline == "solid"


def test_a_transaction_is_found_and_decided_by_keyboard(shop: Shop, browser: Any) -> None:
    (own,) = shop.park("typist", 1)
    browser.get(f"{shop.url}/transactions?state=parked&group=typist")
    tab_to(browser, reads(own))
    press(browser, Keys.ENTER)
    wait(browser, lambda page: own in page.title)
    tab_to(browser, named("reason"))
    press(browser, "it is in the orders table")
    tab_to(browser, named("operator"))
    press(browser, "ada")
    tab_to(browser, reads("Commit"))
    press(browser, Keys.ENTER)
    wait(browser, lambda page: "It is COMMITTED now." in text_of(page))
    whole = shop.admin.get_transaction(own)
    assert whole.state is TransactionState.COMMITTED
    assert [(each.operator, each.reason) for each in whole.operator_actions] == [("ada", "it is in the orders table")]


def test_many_are_counted_and_decided_by_keyboard(shop: Shop, browser: Any) -> None:
    parked = shop.park("typists", 2)
    browser.get(f"{shop.url}/transactions?state=parked&group=typists")
    tab_to(browser, reads("Decide all that match"))
    press(browser, Keys.ENTER)
    tab_to(browser, named("resolution"))
    press(browser, "r")
    tab_to(browser, reads("Count them"))
    press(browser, Keys.ENTER)
    wait(browser, lambda page: "2 transactions match of producer group typists" in text_of(page))
    # What is to be typed first has the focus already.
    assert browser.switch_to.active_element.get_attribute("name") == "reason"
    press(browser, "the shop was closed")
    tab_to(browser, reads("Roll back"))
    press(browser, Keys.ENTER)
    wait(browser, lambda page: "2 of 2 were resolved" in text_of(page))
    assert {shop.admin.get_transaction(own).state for own in parked} == {TransactionState.ROLLED_BACK}


def test_dead_letters_are_counted_and_deleted_by_keyboard(shop: Shop, browser: Any) -> None:
    shop.bury("typing", 3)
    browser.get(f"{shop.url}/groups/typing/dead-letters")
    tab_to(browser, named("before_offset"))
    press(browser, "2", Keys.ENTER)
    wait(browser, lambda page: "2 dead letters of typing below offset 2" in text_of(page))
    # The browser's own dialog takes Enter and Escape; its driver lets no keys through to it, and answers itself.
    tab_to(browser, reads("Delete"))
    press(browser, Keys.ENTER)
    wait(browser, lambda page: page.switch_to.alert).dismiss()
    assert browser.switch_to.active_element.text == "Delete"
    assert len(list(shop.admin.list_dead_letters("typing"))) == 3
    press(browser, Keys.ENTER)
    wait(browser, lambda page: page.switch_to.alert).accept()
    wait(browser, lambda page: "2 deleted." in text_of(page))
    assert [letter.message.offset for letter in shop.admin.list_dead_letters("typing")] == [2]
    # Who goes on by keyboard goes on from here.
    wait(browser, lambda page: page.switch_to.active_element.text == "Delete")
    tab_to(browser, reads("To the dead letters"))
