"""The page as text; tests/browser opens it."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re

import pytest

from fp16conv.reporting.html import render_html
from fp16conv.reporting.markdown import render_markdown
from fp16conv.reporting.payload import ALPHABET, FLOOR, encode_bins
from fp16conv.reporting.per_operator import OperatorShare, PerOperator
from tests.unit.reporting import sample_details as samples
from tests.unit.reporting import sample_reports


def data_of(page: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    assert isinstance(data, dict)
    return data


@pytest.mark.parametrize("kind", sorted(sample_reports.all_reports("x")))
@pytest.mark.parametrize("name", ["encoder", *samples.HOSTILE])
def test_names_never_become_markup(kind: str, name: str) -> None:
    clean = render_html(sample_reports.all_reports("encoder")[kind])
    page = render_html(sample_reports.all_reports(name)[kind])
    tags = re.compile(r"<[a-zA-Z/!][^>]*>")
    assert len(tags.findall(page)) == len(tags.findall(clean))
    assert "\x1b" not in page
    assert "\u202e" not in page


def test_data_holds_every_operator_and_no_markup() -> None:
    page = render_html(samples.report(30, names=samples.HOSTILE))
    data = data_of(page)
    ops = data["ops"]
    assert isinstance(ops, dict)
    assert ops["label"][0] == samples.IMG
    assert ops["label"][2] == samples.CLOSE
    assert {len(column) for column in ops.values()} == {30}
    assert ops["error"][15] == "inf"


def test_policy_has_the_hash_of_each_block_and_nothing_else() -> None:
    page = render_html(samples.report(3))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    blocks = re.findall(r"<(?:style|script)>(.*?)</(?:style|script)>", page, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        digest = base64.b64encode(hashlib.sha256(block.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy[1]
    assert policy[1].count("sha256-") == 3
    assert "unsafe" not in policy[1]
    assert not re.search(r'(src|href)="(?!#|data:)', page)


def test_same_report_same_bytes() -> None:
    assert render_html(samples.report(50)) == render_html(samples.report(50))


def test_a_bin_is_read_back_within_a_step() -> None:
    counts = (1, 0, 40, 900, 100_000)
    total = sum(counts)
    for count, char in zip(counts, encode_bins(counts), strict=True):
        code = ALPHABET.index(char)
        if not count:
            assert code == 0
            continue
        share = 10 ** (FLOOR * (1 - (code - 1) / (len(ALPHABET) - 2)))
        assert share == pytest.approx(count / total, rel=0.16)


def test_operators_that_cause_the_error_are_listed() -> None:
    share = OperatorShare(samples.IMG, "Exp", 0.75, True, 0.5, "softmax-written-out")
    report = dataclasses.replace(
        sample_reports.validate(ok=False), per_operator=PerOperator(samples.CLOSE, "Exp", 0.5, (share,))
    )
    page = render_html(report)
    section = page[page.index('id="causes"') :]
    assert "75.0 %" in section
    assert "softmax-written-out" in section
    assert samples.IMG not in page
    assert "&lt;img src=x" in section
    assert "75.0 %" in render_markdown(report)
