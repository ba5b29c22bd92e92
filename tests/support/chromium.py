"""A real Chromium, driven by its own driver."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

from support.databases import in_ci

DRIVER = "chromedriver"
_SWITCHES = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
)


def need_chromium() -> None:
    """Skips the test where there is no Chromium; in CI it fails."""
    if shutil.which(DRIVER) and (shutil.which("chromium") or shutil.which("google-chrome")):
        return
    reason = "needs Chromium and its driver: apt-get install chromium chromium-driver"
    if in_ci():
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def open_browser(width: int = 1300, height: int = 900, *, dark: bool = False) -> Any:
    """A browser without a window; end it with `quit()`."""
    options = Options()
    for switch in (*_SWITCHES, f"--window-size={width},{height}"):
        options.add_argument(switch)
    if dark:
        options.add_argument("--force-dark-mode")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    # Its own, as Selenium would look for one on the network.
    browser = webdriver.Chrome(options=options, service=Service(shutil.which(DRIVER)))
    browser.set_page_load_timeout(60)
    return browser
