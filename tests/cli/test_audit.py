"""`fp16conv audit`: a registry with good, broken and ill-named models."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import fp16conv.batch.audit as batch_audit

EVIL = "<img src=x onerror=alert(1)>.onnx"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory, samples: Path) -> Path:
    folder = tmp_path_factory.mktemp("registry")
    shutil.copy(samples / "digits_cnn.onnx", folder / EVIL)
    (folder / "junk\x1b[31m.onnx").write_bytes(b"\x0a\xff junk")
    return folder


def test_a_registry(registry: Path, cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = [registry, "--cache", tmp_path / "cache", "-o", tmp_path / "out"]
    first = cli("audit", *flags)
    assert first.code == 1  # what cannot be read is an error
    assert "2 models: 1 ok, 1 unreadable" in first.out
    assert "\x1b" not in first.out
    assert max(map(len, first.out.splitlines())) <= 80 + len(str(tmp_path))

    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "<img" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert "\x1b" not in page
    assert "http://" not in page
    assert "https://" not in page
    (report,) = (tmp_path / "out" / "models").iterdir()
    assert f'href="models/{report.name}"' in page
    assert "<html" in report.read_text(encoding="utf-8")

    junk = next(path for path in registry.iterdir() if path.name.startswith("junk"))
    (tmp_path / "list.txt").write_text(str(registry / EVIL) + "\ngone.onnx\n", encoding="utf-8")
    monkeypatch.setattr(batch_audit, "run_local", _refuse)  # all there is to know is in the cache
    flags = [tmp_path / "list.txt", "--cache", tmp_path / "cache", "-o", tmp_path / "out"]
    second = cli("audit", *flags, "--format", "jsonl", "--fail-on", "never")
    assert second.code == 0
    good, gone = map(json.loads, second.out.splitlines())
    assert (good["status"], good["cached"], good["operators"]) == ("ok", True, 16)
    assert (gone["status"], gone["detail"]) == ("unreadable", "No such file or directory")
    assert junk.is_file()
    assert (tmp_path / "out" / "audit.jsonl").read_text(encoding="utf-8") == second.out


def _refuse(*args: object) -> object:
    raise AssertionError("nothing should run")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--executor", "dask"], "belong together"),
        (["--scheduler", "tcp://x:1"], "belong together"),
        (["--timeout", "-1"], "timeout"),
        (["--fail-on", "warnings"], "did you mean 'warning'"),
        (["--profile", "balansed"], "did you mean 'balanced'"),
    ],
)
def test_usage_errors(args: list[str], message: str, cli: Any, tmp_path: Path) -> None:
    done = cli("audit", tmp_path, *args)
    assert done.code == 2
    assert message in done.err


def test_a_folder_without_models_is_not_a_pass(cli: Any, tmp_path: Path) -> None:
    done = cli("audit", tmp_path)
    assert done.code == 2
    assert "no models to look at" in done.err
