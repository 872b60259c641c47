"""One web server, one daemon and one headless Chromium for the folder. Without Chromium its tests are skipped, with how
to get it; in CI they fail."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from tests.processes import running_daemon, running_webserver
from tests.ui.home import Home, make_home
from tests.ui.page import Page

EVERY_MINUTE = {"FABRIC_SCHEDULE": "* * * * *"}
START_S = 120.0
SCHEDULE = "/locations/fabric/schedules/extract_missing_schedule"


@pytest.fixture(scope="package")
def programs() -> tuple[str, str]:
    """Chromium and its driver."""
    found = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in found:
        say = pytest.fail if os.environ.get("CI") else pytest.skip
        say("there is no Chromium; install Debian's packages chromium and chromium-driver")
    return found[0] or "", found[1] or ""


@pytest.fixture(scope="package")
def home(programs: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Home:
    return make_home(tmp_path_factory.mktemp("ui"))


@pytest.fixture(scope="package")
def browser(programs: tuple[str, str]) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location, driver = programs
    # CI runs as root and with a small /dev/shm.
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    with webdriver.Chrome(options=options, service=Service(driver)) as browser:
        yield browser


@pytest.fixture(scope="package")
def address(home: Home, browser: webdriver.Chrome) -> Iterator[str]:
    """Of the web server; the daemon runs beside it. The schedule is off, as a person left it."""
    environment = home.environment | EVERY_MINUTE
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    with ExitStack() as stack:
        logs = [stack.enter_context((home.folder / f"{name}.log").open("wb")) for name in ("webserver", "daemon")]
        webserver = stack.enter_context(running_webserver(home.dagster_home, port, environment, logs[0]))
        _wait_for(f"{address}/server_info", webserver)
        page = Page(browser, address)
        page.open(SCHEDULE)
        page.shows("Every minute")
        page.switch(on=False)
        stack.enter_context(running_daemon(home.dagster_home, environment, logs[1]))
        yield address


@pytest.fixture(scope="package")
def scheduled(address: str, browser: webdriver.Chrome) -> None:
    """The schedule, turned on by a click. The daemon then works while tests look at what was there before."""
    page = Page(browser, address)
    page.open(SCHEDULE)
    page.shows("Every minute", "Schedule has never run")
    page.switch(on=True)


@pytest.fixture
def page(browser: webdriver.Chrome, address: str) -> Page:
    return Page(browser, address)


def _wait_for(url: str, webserver: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            with urllib.request.urlopen(url):
                return
        except (urllib.error.URLError, ConnectionError):
            assert webserver.poll() is None, "the web server ended"
            assert time.monotonic() < deadline, f"no web server in {START_S} s"
            time.sleep(0.2)
