"""`fp16conv doctor`: what this machine can run."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tempfile
from importlib import metadata

import click

import fp16conv
from fp16conv.cli.environment import Environment
from fp16conv.cli.options import format_flag, level_flags
from fp16conv.cli.terminal import print_text, show_progress
from fp16conv.reporting.layout import wrap
from fp16conv.reporting.units import format_bytes

__all__ = ["command"]

_PACKAGES = (
    "onnx",
    "onnx-ir",
    "onnxruntime-gpu",
    "onnxruntime",
    "numpy",
    "networkx",
    "click",
    "rich",
    "torch",
)

_HELP = """Show versions, what really runs here, and whether the FP16 emulator works.

\b
Examples:
  fp16conv doctor
  fp16conv doctor --format json

Exits with 1 if the emulator or the rule book does not work. A machine without CUDA is fine.
"""


@click.command("doctor", help=_HELP)
@format_flag
@level_flags
@click.pass_obj
def command(env: Environment, /, form: str) -> int:
    """Run the verb."""
    with show_progress(env) as progress:
        progress("trying the emulator and CUDA")
        facts = _collect()
    if form == "json":
        print_text(json.dumps({"schema": "fp16conv.doctor/1", **facts}, indent=2))
    else:
        print_text(_describe(facts))
    return 0 if facts["ok"] else 1


def _collect() -> dict[str, object]:
    from fp16conv.errors import Fp16convError
    from fp16conv.execution.selftest import probe_cuda, probe_emulator
    from fp16conv.rulebook.book import load_book

    emulator, cuda = probe_emulator(), probe_cuda()
    try:
        book = load_book()
        rules = {"ok": True, "detail": f"{len(book.rules)} rules, {len(book.patterns)} patterns"}
        rules["digest"] = book.digest
    except Fp16convError as error:
        rules = {"ok": False, "detail": str(error), "digest": ""}
    folder = tempfile.gettempdir()
    return {
        "ok": emulator.ok and bool(rules["ok"]),
        "fp16conv": fp16conv.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "executable": sys.executable,
        "packages": {name: _version(name) for name in _PACKAGES},
        "emulator": {"ok": emulator.ok, "detail": emulator.detail},
        "cuda": {"ok": cuda.ok, "detail": cuda.detail},
        "rules": rules,
        "cpus": os.cpu_count(),
        "memory": _memory(),
        "temporary_folder": {"path": folder, "free": shutil.disk_usage(folder).free},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _memory() -> int | None:
    """Bytes of physical memory, None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _describe(facts: dict[str, object]) -> str:
    packages, folder = facts["packages"], facts["temporary_folder"]
    assert isinstance(packages, dict)
    assert isinstance(folder, dict)
    memory = facts["memory"]
    installed = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
    missing = ", ".join(name for name, version in packages.items() if not version)
    rows = [
        ("fp16conv", f"{facts['fp16conv']}, Python {facts['python']}, {facts['platform']}"),
        ("Packages", installed),
        ("Not installed", missing),
        (
            "Machine",
            f"{facts['cpus']} CPUs, {format_bytes(memory) if isinstance(memory, int) else '?'} memory",
        ),
        ("Temporary files", f"{folder['path']}, {format_bytes(folder['free'])} free"),
    ]
    for label, key, bad in (
        ("Emulator", "emulator", "BROKEN"),
        ("CUDA", "cuda", "no"),
        ("Rules", "rules", "BROKEN"),
    ):
        item = facts[key]
        assert isinstance(item, dict)
        rows.append((label, f"{'works' if item['ok'] else bad}: {item['detail']}"))
    rules = facts["rules"]
    assert isinstance(rules, dict)
    rows.append(("Rules digest", str(rules["digest"])))
    lines = []
    for label, text in rows:
        if text:
            first, *rest = wrap(text, 80 - 17, limit=4)
            lines += [label.ljust(17) + first, *(" " * 17 + row for row in rest)]
    return "\n".join(lines)
