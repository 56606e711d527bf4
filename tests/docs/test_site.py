"""Pages made from the program: complete, safe as Markdown, and a site that builds without a warning."""

from __future__ import annotations

import importlib.util
import logging
import re
from pathlib import Path
from types import ModuleType

import pytest

from fp16conv.cli.overview import VERBS
from fp16conv.rulebook.book import load_book

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "tools" / "docs_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_rule_has_a_page_with_its_reason_and_sources(site: ModuleType) -> None:
    pages = site.pages()
    book = load_book()
    for rule in [*book.rules, *book.patterns]:
        page = pages[f"rules/{rule.id}.md"]
        assert f"`{rule.verdict.value}`" in page
        assert page.count("\n* ") >= len(rule.evidence)
        assert f"({rule.id}.md)" in pages["rules/index.md"]


def test_every_verb_has_its_help(site: ModuleType) -> None:
    page = site.command_page()
    for verb in VERBS:
        assert f"## fp16conv {verb}\n" in page
    assert "## fp16conv rules explain\n" in page


def test_text_is_shown_as_it_is(site: ModuleType) -> None:
    assert site._text("a*b <c> [d] x_y |z|") == r"a\*b &lt;c&gt; \[d\] x\_y \|z\|"


def test_pages_link_to_rules_that_exist() -> None:
    book = load_book()
    known = {rule.id for rule in [*book.rules, *book.patterns]} | {"index"}
    for page in (ROOT / "docs").rglob("*.md"):
        for name in re.findall(r"\(\.\./rules/([\w-]+)\.md\)", page.read_text(encoding="utf-8")):
            assert name in known, page


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_site_builds_without_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("mkdocs", "material", "mkdocstrings_handlers"):
        pytest.importorskip(name, reason="needs the extra: pip install 'fp16conv[docs]'")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    monkeypatch.chdir(ROOT)
    with caplog.at_level(logging.WARNING, logger="mkdocs"):
        build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path / "site")))
    assert [record.getMessage() for record in caplog.records] == []
    rule = (tmp_path / "site" / "rules" / "exp-overflow.html").read_text(encoding="utf-8")
    assert "Verdict" in rule
    api = (tmp_path / "site" / "reference" / "api.html").read_text(encoding="utf-8")
    assert "data" in api
