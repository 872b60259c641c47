"""What a person does with a browser: opens, reads, clicks, looks at pictures. Nothing here knows Dagster's markup."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from selenium.common.exceptions import StaleElementReferenceException, TimeoutException
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.expected_conditions import presence_of_element_located
from selenium.webdriver.support.ui import WebDriverWait

PATIENCE_S = 30.0
SHOWN = 3000
"""Characters of a page in a message."""

SETTLED_S = 1.0
"""What is still sliding or fading in has arrived by then."""


@dataclass(frozen=True)
class Page:
    """One tab of a browser. FABRIC_SCREENSHOTS names a folder that `screenshot` writes to; unset, it writes none."""

    browser: Chrome
    address: str

    def open(self, path: str, *, width: int = 1440, height: int = 1000) -> None:
        """Goes to a path of the server, or to a whole address, in a window of that many pixels."""
        self.browser.set_window_size(width, height)
        self.browser.get(path if "://" in path else self.address + path)

    @property
    def text(self) -> str:
        """What can be read, with one space for whatever stands between two words."""
        return " ".join(self.browser.execute_script("return document.body.innerText").split())

    def shows(self, *texts: str, patience_s: float = PATIENCE_S) -> None:
        """Waits until every one of these can be read, in any order."""
        try:
            WebDriverWait(self.browser, patience_s).until(lambda _: all(text in self.text for text in texts))
        except TimeoutException:
            missing = [text for text in texts if text not in self.text]
            raise AssertionError(
                f"{self.browser.current_url} does not show {missing}; it shows: {self.text[:SHOWN]}"
            ) from None

    def no_longer_shows(self, text: str) -> None:
        """Waits until this cannot be read."""
        try:
            WebDriverWait(self.browser, PATIENCE_S).until(lambda _: text not in self.text)
        except TimeoutException:
            raise AssertionError(f"{self.browser.current_url} still shows {text!r}: {self.text[:SHOWN]}") from None

    def element(self, text: str, *, within: str = "") -> WebElement:
        """Waits for what has just this text, can be seen and, with `within`, lies below an element of that XPath."""
        found: list[WebElement] = []

        def seen(browser: Chrome) -> bool:
            elements = browser.find_elements(By.XPATH, f"{within}//*[normalize-space(.)={_quoted(text)}]")
            # The innermost comes last in document order of one branch.
            found[:] = [e for e in reversed(elements) if e.is_displayed()]
            return bool(found)

        try:
            ignored = [StaleElementReferenceException]
            WebDriverWait(self.browser, PATIENCE_S, ignored_exceptions=ignored).until(seen)
        except TimeoutException:
            raise AssertionError(f"{self.browser.current_url} has no {text!r}; it shows: {self.text[:SHOWN]}") from None
        return found[0]

    def click(self, text: str, *, within: str = "") -> None:
        element = self.element(text, within=within)
        self.browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def switch(self, *, on: bool) -> None:
        """Clicks the page's one switch, which is the other way round."""
        found = presence_of_element_located((By.CSS_SELECTOR, "input[type=checkbox]"))
        switch = WebDriverWait(self.browser, PATIENCE_S).until(found)
        assert switch.is_selected() != on
        # The input itself is drawn by what is around it.
        switch.find_element(By.XPATH, "..").click()
        WebDriverWait(self.browser, PATIENCE_S).until(lambda _: switch.is_selected() == on)

    def pictures(self) -> list[WebElement]:
        """Every picture that was loaded and drawn: it has a size of its own and one on the page."""
        images = self.browser.find_elements(By.TAG_NAME, "img")
        return [i for i in images if i.is_displayed() and i.get_property("naturalWidth") and i.size["width"]]

    def screenshot(self, name: str) -> None:
        if folder := os.environ.get("FABRIC_SCREENSHOTS"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            time.sleep(SETTLED_S)
            self.browser.save_screenshot(str(Path(folder) / f"{name}.png"))


def _quoted(text: str) -> str:
    return f'"{text}"' if "'" in text else f"'{text}'"
