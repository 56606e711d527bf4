"""Runs `fp16conv analyze` on several models: for commit hooks and CI, which know a list of changed files.

    python -m fp16conv.cli.each [--since REF] [--reports DIR] [FLAGS OF ANALYZE] [MODEL.onnx ...]

The exit code is the worst of them. A model that cannot be read does not keep the others from being looked at.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fp16conv.cli.app import run
from fp16conv.cli.terminal import print_error, print_text
from fp16conv.errors import UsageError
from fp16conv.reporting.sanitize import sanitize

__all__ = ["find_changed", "main"]

_ENDINGS = (".sarif", ".md", ".html", ".json")


def main(args: Sequence[str], analyze: Callable[[Sequence[str]], int] = run) -> int:
    """Analyze every model named, and those changed since a commit.

    Args:
        args: command line without the program's name.
        analyze: runs a command line of fp16conv; tests hand in their own.

    Returns:
        The worst exit code; 0 where there is no model.
    """
    parser = argparse.ArgumentParser(prog="python -m fp16conv.cli.each", add_help=False, allow_abbrev=False)
    parser.add_argument("--since")
    parser.add_argument("--reports", type=Path)
    own, rest = parser.parse_known_args(list(args))
    models = [word for word in rest if word.endswith(".onnx") and not word.startswith("-")]
    flags = [word for word in rest if word not in models]
    try:
        changed = find_changed(own.since) if own.since else []
        models += [model for model in changed if model not in models]
        if own.reports is not None:
            own.reports.mkdir(parents=True, exist_ok=True)
    except (UsageError, OSError) as error:
        print_error(str(error))
        return 2
    codes = [0]
    for number, model in enumerate(models, 1):
        print_text(sanitize(f"== {model} ({number} of {len(models)})"))
        reports = []
        if own.reports is not None:
            stem = own.reports / f"{number:03}-{Path(model).stem}"
            reports = [word for ending in _ENDINGS for word in ("--report", f"{stem}{ending}")]
        # A file called --help.onnx is a file.
        codes.append(analyze(["analyze", *flags, *reports, "--", model]))
    if not models:
        print_text("no .onnx files to look at")
    return max(codes)


def find_changed(since: str) -> list[str]:
    """The .onnx files added or changed since the branch left `since`, in git's order.

    Raises:
        UsageError: git does not know the commit, or this is no checkout.
    """
    command = ["git", "diff", "--name-only", "-z", "--diff-filter=AMR", f"{since}...HEAD", "--", "*.onnx"]
    try:
        done = subprocess.run(command, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        why = getattr(error, "stderr", b"") or str(error).encode()
        raise UsageError(
            "the changed files cannot be told",
            where=f"git diff {since}...HEAD",
            why=why.decode(errors="backslashreplace").strip(),
            hint="fetch the history (fetch-depth: 0)",
        ) from error
    return [name.decode("utf-8", "surrogateescape") for name in done.stdout.split(b"\0") if name]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
