from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fp16conv.api import analyze, convert, tune, validate
from fp16conv.reporting.html import render_html
from tests.unit.reporting import sample_details as samples
from tests.unit.reporting import sample_reports

ROOT = Path(__file__).resolve().parents[2]
CASES, SAMPLES = ROOT / "tests" / "cases", ROOT / "samples"
WIDTHS = (1280, 390)
CONTRAST = """() => {
  const parse = (c) => c.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const back = (node) => {
    for (let n = node; n; n = n.parentElement) {
      const c = parse(getComputedStyle(n).backgroundColor);
      if (c.length === 3 || c[3] === 1) return c;
    }
    return [255, 255, 255];
  };
  const bad = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((c) => c.nodeType === 3 && c.textContent.trim());
    if (!own || !node.getClientRects().length || node.closest("script, style, .skip, option")) continue;
    const [a, b] = [light(parse(getComputedStyle(node).color)), light(back(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const name = `${node.tagName}.${node.className} ${node.textContent.slice(0, 30)}`;
    if (ratio < 4.5) bad.push(`${name} ${ratio.toFixed(2)}`);
  }
  return bad;
}"""
NAMELESS = """() => [...document.querySelectorAll("button, input, select, [role=img], [role=grid], canvas")]
  .filter((n) => n.getClientRects().length && !(n.parentElement && n.parentElement.closest("[role=img]")))
  .filter((n) => !(n.getAttribute("aria-label") || n.textContent.trim() || (n.labels && n.labels.length)))
  .map((n) => n.outerHTML.slice(0, 80))"""


@pytest.mark.parametrize("kind", sorted(sample_reports.all_reports("x")))
def test_every_report_opens_without_a_word_on_the_console(open_report: Any, kind: str) -> None:
    page = open_report(sample_reports.all_reports("encoder")[kind])
    assert page.locator(".verdict").is_visible()
    assert page.messages == []
    assert all(url.startswith(("file:", "data:")) for url in page.requests)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_first_screen_answers(open_report: Any, width: int, scheme: str) -> None:
    page = open_report(samples.report(60), width=width, scheme=scheme)
    for selector in (".verdict", ".next pre", ".card"):
        box = page.locator(selector).first.bounding_box()
        assert box["y"] + min(box["height"], 40) < 800
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate(NAMELESS) == []
    assert page.messages == []


def test_theme_button_wins_over_the_system(open_report: Any) -> None:
    page = open_report(samples.report(20), scheme="light")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator("#theme").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    assert page.evaluate(CONTRAST) == []
    assert page.messages == []


def test_hostile_names_stay_text(open_report: Any) -> None:
    page = open_report(samples.report(40, names=samples.HOSTILE, name=samples.IMG + samples.CLOSE))
    assert page.locator("#grid-body").get_by_text(samples.IMG, exact=True).count() == 1
    page.get_by_role("button", name=re.compile("img src=x")).first.click()
    for row in range(len(samples.HOSTILE)):
        page.locator("#grid-body .row").nth(row).click()
        assert page.locator("#detail").is_visible()
        page.keyboard.press("Escape")
    assert page.evaluate("document.images.length") == 0
    assert page.evaluate("document.scripts.length") == 3
    assert page.evaluate("document.querySelectorAll('[onmouseover], [onerror]').length") == 0
    assert page.messages == []
    assert "\x1b" not in page.content()


def test_policy_stops_a_script_that_is_not_ours(open_report: Any) -> None:
    page = open_report(samples.report(5))
    page.evaluate("""() => {
      const script = document.createElement("script");
      script.textContent = "window.intruder = true";
      document.body.append(script);
    }""")
    assert page.evaluate("window.intruder") is None
    assert any("Content Security Policy" in message for message in page.messages)


def test_ten_thousand_operators(open_report: Any) -> None:
    report = samples.report(10_000)
    assert len(render_html(report).encode()) < 8_000_000
    page = open_report(report)
    rows = page.locator("#grid-body .row")
    assert page.locator("#f-count").text_content() == "10000 of 10000 operators"
    assert rows.count() < 60
    assert page.locator("ul.tree li").count() < 60
    page.locator("#f-text").fill("layers.42/")
    page.locator("#f-count", has_text=re.compile("^100 of 10000 operators$")).wait_for()
    page.locator("#f-type").select_option("Exp")
    assert re.fullmatch(r"1[23] of 10000 operators", page.locator("#f-count").text_content())
    page.locator("#f-clear").click()
    page.locator("#grid-body").evaluate("node => { node.scrollTop = node.scrollHeight; }")
    page.locator("#grid-body .c-id", has_text=re.compile("^10000$")).wait_for()
    assert page.messages == []


def test_sorting_puts_the_worst_first(open_report: Any) -> None:
    page = open_report(samples.report(500))
    page.locator("#grid-head .c-err button").click()
    head = page.locator("#grid-head .c-err")
    assert head.get_attribute("aria-sort") == "descending"
    assert page.locator("#grid-body .row .c-err").first.text_content() == "inf"
    page.locator("#grid-head .c-err button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert page.locator("#grid-body .row .c-err").first.text_content() != "inf"


def test_an_operator_shows_its_reasons_rule_ranges_and_histogram(open_report: Any) -> None:
    page = open_report(samples.report(200))
    page.locator("#grid-body .row").nth(2).click()
    panel = page.locator("#detail")
    text = panel.text_content()
    for part in ("the range reaches", "exp-overflow", "ln(65504) is 11.09.", "IEEE 754", "RMS", "observed"):
        assert part in text
    assert panel.locator("canvas").count() == 1
    assert page.messages == []


def test_keyboard_alone_reaches_an_operator_and_back(open_report: Any) -> None:
    page = open_report(samples.report(300))
    page.locator("#grid-body").focus()
    for key in ("ArrowDown", "ArrowDown", "PageDown", "End", "Home", "ArrowDown"):
        page.keyboard.press(key)
    assert page.locator("#grid-body").get_attribute("aria-activedescendant") == "row-1"
    page.keyboard.press("Enter")
    assert page.locator("#detail-title").text_content().endswith("Add_1")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Close details"
    page.keyboard.press("Escape")
    assert page.locator("#detail").is_hidden()
    assert page.evaluate("document.activeElement.id") == "grid-body"


def test_blocks_open_on_demand(open_report: Any) -> None:
    page = open_report(samples.report(1000))
    tree = page.locator("#tree")
    assert tree.locator("li").count() == 1
    tree.locator("button.open").first.click()
    assert tree.locator("li").count() == 11
    page.locator("#tree-by").select_option("error")
    assert tree.locator(".seg.err").count() == 1


def test_links_lead_from_a_kept_group_to_its_operators(open_report: Any) -> None:
    page = open_report(samples.report(160))
    page.locator('[data-rule="exp-overflow"] button').click()
    assert page.locator("#f-rule").input_value() == "exp-overflow"
    assert page.locator("#f-count").text_content() == "40 of 160 operators"


def test_without_script_the_answer_and_the_reasons_are_there(open_report: Any) -> None:
    page = open_report(samples.report(50), java_script_enabled=False)
    for selector in (".verdict", ".next pre", "#kept", "#findings"):
        assert page.locator(selector).is_visible()
    assert page.locator("#operators").is_hidden()


def test_print_shows_rows_and_no_controls(open_report: Any) -> None:
    page = open_report(samples.report(120))
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.locator("#grid-body .row").count() == 120
    assert page.locator(".controls").first.is_hidden()
    assert len(page.pdf()) > 10_000


def test_from_a_model_that_overflows_the_first_screen_leads_to_cause_and_fix(
    open_report: Any, tmp_path: Path
) -> None:
    case = CASES / "a05_square_overflow"
    report = analyze(case.with_suffix(".onnx"), data=str(case.with_suffix(".npz")), details=True)
    page = open_report(report)
    link = page.locator(".card [data-op] button").first
    assert link.bounding_box()["y"] < 800
    link.click()
    panel = page.locator("#detail")
    assert "FP32" in panel.locator(".chip").first.text_content()
    assert re.search(r"reaches .* beyond\s+65504", panel.text_content())
    assert "fp16conv" in page.locator("#findings").text_content()
    assert page.messages == []


@pytest.mark.slow
def test_reports_of_every_verb_on_a_real_model(open_report: Any, tmp_path: Path) -> None:
    model, data = SAMPLES / "digits_cnn.onnx", str(SAMPLES / "digits_calibration.npz")
    output = tmp_path / "half.onnx"
    for report in (
        analyze(model, data=data, details=True),
        convert(model, output, data=data, details=True),
        tune(model, tolerance=0.01, data=data, details=True),
        validate(model, output, data=data, details=True),
    ):
        page = open_report(report, width=390)
        assert page.locator("#grid-body .row").count() > 5
        page.locator("#grid-body .row").nth(2).click()
        assert page.locator("#detail").is_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.messages == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_gradients_of_a_training_move_into_range_with_the_scale(open_report: Any, scheme: str) -> None:
    page = open_report(sample_reports.train_audit(), scheme=scheme)
    assert page.locator("#gradient-plot canvas").count() == 1
    assert "At scale 1, 100.0 % become zero" in page.inner_text("#g-words")
    before = page.locator("#gradient-plot").screenshot()
    page.select_option("#g-scale", index=1)
    assert page.locator("#gradient-plot").screenshot() != before
    page.select_option("#g-of", index=0)
    assert "At scale 1, 32.7 % become zero" in page.inner_text("#g-words")
    assert page.locator("svg.interval").count() == 14
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate(NAMELESS) == []
    assert page.messages == []
