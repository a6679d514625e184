"""A headless Chromium, driven by selenium; a test without it is listed as NOT RUN."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.keys import Keys

from tests.support.farm import TIMEOUT_S
from tests.support.third_party import need

DESKTOP, PHONE = (1280, 900), (360, 740)


class Browser:
    """One browser window with the questions that tests ask."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(
        self, address: str | Path, size: tuple[int, int] = DESKTOP, scheme: str = "light"
    ) -> None:
        """Opens a page, or a file, in a window of a size and a colour scheme."""
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        # A page that differs by its fragment alone would not be loaded again.
        self.driver.get("about:blank")
        self.driver.get(address.as_uri() if isinstance(address, Path) else address)

    def run(self, script: str, *values: Any) -> Any:
        """The result of a script in the page."""
        return self.driver.execute_script(script, *values)

    def press(self, *keys: str) -> None:
        """Presses keys, one after another."""
        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def tab_to(self, holds: str, most: int = 80) -> int:
        """Presses Tab until the script holds for the focused element `e`; returns how often."""
        for presses in range(1, most + 1):
            self.press(Keys.TAB)
            if self.run(f"const e = document.activeElement; return Boolean({holds})"):
                return presses
        shown = self.run("return [location.href, document.body.innerText.slice(0, 500)]")
        raise AssertionError(f"{most} presses of Tab did not reach: {holds}; seen: {shown}")

    def wait(self, script: str, what: str) -> Any:
        """The first true result of a script in the page; fails the test if there is none."""
        return wait_for(lambda: self.run(script), what)

    def messages(self) -> list[str]:
        """What the browser's console reported since the last call: errors, refused contents."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@contextlib.contextmanager
def running_browser() -> Iterator[Browser]:
    """A browser that is closed at the end; skips the test if it is not installed."""
    need("chromium", "chromedriver")
    options = Options()
    options.binary_location = shutil.which("chromium") or ""
    # As root in a container, Chromium's own sandbox does not start; it opens our pages alone.
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.add_argument("--disable-background-networking")
    options.accept_insecure_certs = True
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_page_load_timeout(TIMEOUT_S)
    try:
        yield Browser(driver)
    finally:
        driver.quit()


def wait_for(value: Callable[[], Any], what: str) -> Any:
    """The first true value of a function."""
    began = time.monotonic()
    while not (found := value()):
        assert time.monotonic() - began < TIMEOUT_S, f"not within {TIMEOUT_S} s: {what}"
        time.sleep(0.02)
    return found
