"""Shell completion: verbs, flags and the words that flags take."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def _complete(words: str) -> list[str]:
    variables = {
        "_FP16CONV_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    code = "from fp16conv.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | variables, capture_output=True, text=True, timeout=60
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("fp16conv an", "plain,analyze"),
        ("fp16conv analyze --prof", "plain,--profile"),
        ("fp16conv analyze --profile ba", "plain,balanced"),
        ("fp16conv analyze --fail-on wa", "plain,warning"),
    ],
)
def test_completion(words: str, found: str) -> None:
    assert _complete(words) == [found]
