"""How fluid the HTML report of a large model is: size, first paint, filter, in headless Chromium.

    python -m benchmarks.html_report [OPERATORS]

Needs the package playwright and a chromium on the PATH.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from fp16conv.reporting.html import render_html
from tests.browser.conftest import ARGUMENTS
from tests.unit.reporting.sample_details import report

PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
READY = "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"
ACT = """async ([id, value, event]) => {
  const start = performance.now();
  const field = document.getElementById(id);
  field.value = value;
  field.dispatchEvent(new Event(event));
  await new Promise((done) => setTimeout(done, 61));
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return performance.now() - start;
}"""


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    start = time.perf_counter()
    page = render_html(report(count))
    print(f"{count} operators: rendered in {time.perf_counter() - start:.2f} s, {len(page) / 1e6:.2f} MB")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        path = Path(folder) / "report.html"
        path.write_text(page, encoding="utf-8")
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=list(ARGUMENTS))
        view = browser.new_page()
        view.goto(path.as_uri())
        print(f"first paint {view.evaluate(PAINT):.0f} ms, interactive {view.evaluate(READY):.0f} ms")
        print(f"search {view.evaluate(ACT, ['f-text', 'layers.42', 'input']):.0f} ms (61 of them waiting)")
        print(f"filter {view.evaluate(ACT, ['f-type', 'Softmax', 'change']):.0f} ms (61 of them waiting)")
        browser.close()


if __name__ == "__main__":
    main()
