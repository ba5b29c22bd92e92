"""Looking at pages in a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from console.shop import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable


def wait(browser: Any, until: Callable[[Any], Any]) -> Any:
    """Waits until something is so on a page; returns what it is."""
    return WebDriverWait(browser, PATIENCE, 0.1, [StaleElementReferenceException]).until(until)


def text_of(browser: Any) -> str:
    """What a page shows."""
    return str(browser.find_element(By.TAG_NAME, "main").text)
