"""A real browser: Debian's chromium, driven by playwright; without one the tests are skipped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fp16conv.reporting.html import render_html
from fp16conv.reporting.report import Report

# What a browser would do on its own: nothing of it belongs into a test.
ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    executable = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if executable is None:
        pytest.skip("no chromium here: apt-get install chromium, or set CHROMIUM to its path")
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=executable, args=list(ARGUMENTS))
        yield chromium
        chromium.close()


class Page:
    """An opened report, and everything that went wrong in it."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.messages: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.messages.append(message.text))
        page.on("pageerror", lambda error: self.messages.append(str(error)))
        page.on("dialog", lambda dialog: (self.messages.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self.requests.append(request.url))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.page, name)


Open = Callable[..., Page]


@pytest.fixture
def open_report(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Render a report and open the file."""
    contexts = []

    def show(report: Report, *, width: int = 1280, scheme: str = "light", **options: Any) -> Page:
        path = tmp_path / "report.html"
        path.write_text(render_html(report), encoding="utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, **options
        )
        contexts.append(context)
        page = Page(context.new_page())
        page.goto(path.as_uri())
        return page

    yield show
    for context in contexts:
        context.close()
