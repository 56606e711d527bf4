"""Several models in one go, as hooks and CI run them; action.yml and .pre-commit-hooks.yaml around it."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from fp16conv.cli.each import find_changed, main
from fp16conv.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "samples" / "digits_cnn.onnx"


def git(folder: Path, *args: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    subprocess.run(["git", *identity, *args], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose last commit adds two models, one with a hostile name, and removes one."""
    git(tmp_path, "init", "-q", "-b", "main")
    shutil.copy(SAMPLE, tmp_path / "old.onnx")
    shutil.copy(SAMPLE, tmp_path / "gone.onnx")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "base")
    shutil.copy(SAMPLE, tmp_path / "new.onnx")
    shutil.copy(SAMPLE, tmp_path / "it's $(touch pwned) \x1b[31m.onnx")
    (tmp_path / "notes.txt").write_text("no model")
    (tmp_path / "gone.onnx").unlink()
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "change")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_changed_models_are_found(checkout: Path) -> None:
    assert find_changed("HEAD~1") == ["it's $(touch pwned) \x1b[31m.onnx", "new.onnx"]


def test_an_unknown_commit_is_a_usage_error(checkout: Path) -> None:
    with pytest.raises(UsageError, match="cannot be told"):
        find_changed("no-such-branch")
    assert main(["--since", "no-such-branch"]) == 2


def test_the_worst_exit_code_counts_and_all_are_looked_at(tmp_path: Path) -> None:
    calls: list[Sequence[str]] = []

    def analyze(args: Sequence[str]) -> int:
        calls.append(args)
        return {"b.onnx": 3, "c.onnx": 1}.get(args[-1], 0)

    assert main(["--profile", "fast", "a.onnx", "b.onnx", "c.onnx"], analyze) == 3
    assert [call[-1] for call in calls] == ["a.onnx", "b.onnx", "c.onnx"]
    assert all(call[:3] == ["analyze", "--profile", "fast"] and call[-2] == "--" for call in calls)


def test_no_model_is_fine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "no .onnx files" in capsys.readouterr().out


def test_reports_of_a_real_model(tmp_path: Path) -> None:
    assert main(["--reports", str(tmp_path / "r"), str(SAMPLE)]) == 0
    names = sorted(path.name for path in (tmp_path / "r").iterdir())
    assert names == [f"001-digits_cnn.{ending}" for ending in ("html", "json", "md", "sarif")]
    log = json.loads((tmp_path / "r" / "001-digits_cnn.sarif").read_text())
    assert log["runs"][0]["automationDetails"]["id"].endswith("digits_cnn.onnx/")


def script_of_the_action() -> str:
    """The last `run: |` block of action.yml, without a YAML library."""
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    block = text[text.rindex("run: |\n") + len("run: |\n") :]
    assert "${{" not in block, "an input inside of the script would be run as code"
    return "\n".join(line.removeprefix("        ") for line in block.splitlines())


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_the_action_runs_on_what_a_pull_request_changes(checkout: Path) -> None:
    runner = checkout / "runner"
    runner.mkdir()
    # A stand-in for analyze keeps this fast: the real one is tested above.
    fake = runner / "python"
    fake.write_text(
        f"#!/bin/sh\nexec {sys.executable} -c 'import sys; from fp16conv.cli import each; "
        'log = lambda a: print(repr(a), file=open("calls", "a")) or 1; '
        'sys.exit(each.main(sys.argv[3:], log))\' "$@"\n'
    )
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    environment = os.environ | {
        "PYTHON": str(fake),
        "MODELS": "",
        "BASE": "HEAD~1",
        "ARGUMENTS": "--profile fast",
        "FAIL_ON": "warning",
        "RUNNER_TEMP": str(runner),
        "GITHUB_OUTPUT": str(runner / "output"),
        "GITHUB_STEP_SUMMARY": str(runner / "summary"),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        ["bash", "-c", script_of_the_action()], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    calls = (checkout / "calls").read_text().splitlines()
    assert len(calls) == 2
    assert all("'--fail-on', 'warning', '--profile', 'fast'" in call for call in calls)
    assert not (checkout / "pwned").exists()
    assert f"reports={runner}/fp16conv-reports" in (runner / "output").read_text()


def test_the_hook_names_a_module_that_exists() -> None:
    text = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    entry = re.search(r"entry: python -m (\S+)", text)
    assert entry is not None
    done = subprocess.run([sys.executable, "-m", entry[1]], capture_output=True, text=True)
    assert done.returncode == 0
    assert "no .onnx files" in done.stdout
