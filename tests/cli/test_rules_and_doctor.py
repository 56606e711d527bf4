from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fp16conv.rulebook.book import load_book

RULE = """
[[rule]]
id = "my-exp"
name = "No Exp in FP16 here"
verdict = "deny"
rationale = "we say so"
evidence = ["our own measurements"]
match = {{ op = ["Exp"] }}
{extra}
"""


def test_list_names_every_rule_once(cli: Any) -> None:
    done = cli("rules", "list")
    assert (done.code, done.err) == (0, "")
    names = [row.split()[0] for row in done.out.splitlines()]
    book = load_book()
    expected = [rule.id for rule in book.rules]
    assert len(expected) > 0
    assert names == [*expected, *(pattern.id for pattern in book.patterns)]
    assert all(len(row) <= 80 for row in done.out.splitlines())
    values = json.loads(cli("rules", "list", "--format", "json").out)
    assert values["schema"] == "fp16conv.rules/1"
    assert [rule["id"] for rule in values["rules"]] == expected
    assert values["digest"] == load_book().digest


def test_list_by_operator(cli: Any) -> None:
    values = json.loads(cli("rules", "list", "--op", "MatMul", "--format", "json").out)
    assert values["rules"]
    assert all("MatMul" in rule["match"]["op"] for rule in values["rules"])
    unknown = cli("rules", "list", "--op", "MatMull")
    assert unknown.code == 2
    assert "'MatMul'" in unknown.err


def test_every_rule_can_be_explained(cli: Any) -> None:
    for rule in [*load_book().rules, *load_book().patterns]:
        done = cli("rules", "explain", rule.id)
        assert done.code == 0
        assert done.out.startswith(f"{rule.id}: ")
        assert f"Verdict    {rule.verdict.value}" in done.out
        assert max(map(len, done.out.splitlines()[2:])) <= 80


def test_an_unknown_rule_comes_with_a_suggestion(cli: Any) -> None:
    identifier = load_book().rules[0].id
    done = cli("rules", "explain", identifier + "x")
    assert done.code == 2
    assert f"'{identifier}'" in done.err


def test_check_accepts_a_good_file_and_names_what_is_wrong_in_a_bad_one(cli: Any, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(RULE.format(extra=""), encoding="utf-8")
    good = cli("rules", "check", file)
    assert (good.code, good.err) == (0, "")
    assert "my-exp" in good.out
    assert json.loads(cli("rules", "check", file, "--format", "json").out)["rules"] == ["my-exp"]
    file.write_text(RULE.format(extra='verdikt = "deny"'), encoding="utf-8")
    bad = cli("rules", "check", file)
    assert (bad.code, bad.out) == (2, "")
    assert "verdikt" in bad.err
    missing = cli("rules", "check", tmp_path / "none.toml")
    assert (missing.code, missing.out) == (2, "")
    file.write_text("= not toml", encoding="utf-8")
    assert cli("rules", "check", file).code == 2


def test_a_user_s_rule_is_listed(cli: Any, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(RULE.format(extra=""), encoding="utf-8")
    assert "my-exp" in cli("rules", "list", "--rules", file).out
    assert "No Exp in FP16 here" in cli("rules", "explain", "my-exp", "--rules", file).out


@pytest.mark.slow
def test_doctor_tries_the_emulator(cli: Any) -> None:
    done = cli("doctor", "--format", "json")
    values = json.loads(done.out)
    assert done.code == 0
    assert values["schema"] == "fp16conv.doctor/1"
    assert values["emulator"]["ok"] is True
    assert "inf" in values["emulator"]["detail"]
    assert values["rules"]["digest"] == load_book().digest
    assert values["packages"]["onnx"]


def test_doctor_reports_what_is_broken(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from fp16conv.execution import selftest

    broken = selftest.ProbeResult(False, "no runtime\x1b[31m")
    monkeypatch.setattr(selftest, "probe_emulator", lambda: broken)
    monkeypatch.setattr(selftest, "probe_cuda", lambda: broken)
    done = cli("doctor")
    assert done.code == 1
    assert "BROKEN: no runtime" in done.out
    assert "\x1b" not in done.out
