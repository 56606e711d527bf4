"""Every command of the documentation does what the page says: it runs.

A block that cannot run carries `<!-- not run: REASON -->` in the line above it, one that fails on purpose
`<!-- exit code N: REASON -->`; `<!-- file: NAME -->` above a block makes it a file for the commands below it.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fp16conv.cli import run

ROOT = Path(__file__).resolve().parents[2]

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

STAND_INS = {
    "model.onnx": "digits_transformer.onnx",
    "det.onnx": "digits_cnn.onnx",  # has BatchNormalization
    "batches/000.npz": "digits_calibration.npz",
    "pages/000.npz": "digits_calibration.npz",
    "test.npz": "digits_test.npz",
}
"""Files that pages name, and the samples that stand in for them."""

_BLOCK = re.compile(r"(?:^<!-- ([^\n]*) -->\n)?^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    note: str
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        lines = (line.removeprefix("$ ") for line in self.text.replace("\\\n", " ").splitlines())
        return [line for line in lines if re.match(r"(fp16conv|make)( |$)", line)]


def blocks(text: str) -> list[Block]:
    return [Block(note or "", language, body) for note, language, body in _BLOCK.findall(text)]


def runnable(page: Path) -> Iterator[Block]:
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.note.startswith("file: ") or (block.commands and not block.note.startswith("not run: ")):
            yield block


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a reader has: a checkout, and a model and data of their own under the names that pages use."""
    for name in ("samples", "tests", "rules"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name, sample in STAND_INS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / "samples" / sample, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(runnable(page))],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_commands_run(page: Path, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for block in runnable(page):
        if block.note.startswith("file: "):
            (workplace / block.note.removeprefix("file: ")).write_text(block.text, encoding="utf-8")
            continue
        expected = re.match(r"exit code (\d+): ", block.note)
        for command in block.commands:
            code = _run(command)
            assert code == (int(expected[1]) if expected else 0), f"{command}: {capsys.readouterr().err}"


def _run(command: str) -> int:
    words = shlex.split(command, comments=True)
    if words[0] == "make":
        # Making an environment is what `make test` itself did; here: that the target exists.
        dry = ["make", "--dry-run", "-C", str(ROOT), *words[1:]]
        return subprocess.run(dry, capture_output=True, check=False).returncode
    if ">" in words:
        words = words[: words.index(">")]
    return run(words[1:])


def test_marks_give_a_reason() -> None:
    for page in PAGES:
        for block in blocks(page.read_text(encoding="utf-8")):
            if block.commands and block.note:
                assert re.match(r"(not run|exit code \d+): \w+", block.note), (page, block.note)


def test_the_search_sees_commands_and_marks() -> None:
    text = "x\n\n```\nfp16conv a\n```\n\n<!-- not run: why -->\n```sh\n$ make b \\\n  c\nother\n```\n"
    first, second = blocks(text)
    assert (first.note, first.commands) == ("", ["fp16conv a"])
    assert (second.note, second.commands) == ("not run: why", ["make b    c"])
