"""The index of an audit as one HTML file, and the folder around it.

No script, no network; every text from a model or a path is escaped, and a Content-Security-Policy admits the
page's own style only.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

import fp16conv
from fp16conv.batch.audit import Audited
from fp16conv.batch.cache import write_files
from fp16conv.batch.rows import Row, Status
from fp16conv.errors import unwritable
from fp16conv.reporting.sanitize import sanitize
from fp16conv.reporting.units import format_bytes, format_share, plural

__all__ = ["MARKS", "describe_counts", "render_index", "render_lines", "size_of", "write_folder"]

MARKS = {
    Status.OK: ("✓", "good"),
    Status.WARNING: ("!", "warn"),
    Status.ERROR: ("✗", "bad"),
    Status.UNREADABLE: ("✗", "bad"),
    Status.CRASHED: ("✗", "bad"),
    Status.TIMEOUT: ("✗", "bad"),
}
"""A sign and a tone: nothing is said by colour alone."""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>FP16 audit: {title}</title>
<style>
{style}</style>
</head>
<body>
<main>
<h1>FP16 audit: {title}</h1>
<p>{counts}. Speed-up is predicted by a roofline, not measured; ranges are those of made-up inputs.
fp16conv {version}.</p>
<div class="scroll"><table>
<thead><tr><th scope="col">Status</th><th scope="col">Model</th>
<th scope="col" class="number">MACs in FP16</th>
<th scope="col" class="number">Casts</th><th scope="col" class="number">Weights</th>
<th scope="col" class="number">Speed-up</th></tr></thead>
<tbody>
{rows}
</tbody>
</table></div>
</main>
</body>
</html>
"""


def describe_counts(rows: Sequence[Row]) -> str:
    """Counts by status, worst last.

    Example:
        >>> describe_counts([Row("a.onnx", Status.OK), Row("b.onnx", Status.TIMEOUT)])
        '2 models: 1 ok, 1 timeout'
    """
    counts = Counter(row.status for row in rows)
    parts = ", ".join(f"{counts[status]} {status}" for status in Status if counts[status])
    return f"{plural(len(rows), 'model')}: {parts}"


def size_of(row: Row) -> str:
    """Bytes of weights before and after, a dash where they are not known."""
    if row.weights_before is None or row.weights_after is None:
        return "-"
    return f"{format_bytes(row.weights_before)} → {format_bytes(row.weights_after)}"


def render_lines(rows: Sequence[Row]) -> str:
    """One JSON object per line; ASCII only, so that no name reaches a terminal raw."""
    return "".join(json.dumps(row.to_dict(), allow_nan=False) + "\n" for row in rows)


def render_index(rows: Sequence[Row], links: Sequence[str | None]) -> str:
    """The page.

    Args:
        rows: one per model.
        links: address of each model's own report, relative to the page, or None.
    """
    return _PAGE.format(
        title=plural(len(rows), "model"),
        counts=escape(describe_counts(rows)),
        style=Path(__file__).with_name("index.css").read_text(encoding="utf-8"),
        version=escape(fp16conv.__version__),
        rows="\n".join(_line(row, link) for row, link in zip(rows, links, strict=True)),
    )


def _line(row: Row, link: str | None) -> str:
    mark, tone = MARKS[row.status]
    name = _text(row.path)
    if link is not None:
        name = f'<a href="{escape(quote(link))}">{name}</a>'
    speedup = "-" if row.speedup is None else f"{row.speedup:.2f}x"
    if row.detail:
        name += f"<p>{_text(row.detail)}</p>"
    numbers = [
        "-" if row.operators is None else format_share(row.macs_share),
        "-" if row.casts is None else str(row.casts),
        size_of(row),
        speedup,
    ]
    cells = "".join(f'<td class="number">{escape(number)}</td>' for number in numbers)
    return (
        f'<tr><td class="status {tone}">{mark} {row.status}</td><th scope="row" class="name">{name}</th>'
        f"{cells}</tr>"
    )


def _text(text: str) -> str:
    return escape(sanitize(text))


def write_folder(folder: str, audited: Sequence[Audited]) -> Path:
    """Write `index.html`, `audit.jsonl` and `models/NNN-NAME.html`.

    Args:
        folder: made if missing.
        audited: one entry per model.

    Returns:
        The index.

    Raises:
        UsageError: the folder cannot be written.
        ConversionError: the disk is full; a folder that was not there before is removed.
    """
    root, is_new = Path(folder), not os.path.lexists(folder)
    rows = [entry.row for entry in audited]
    links = [_link(number, entry) for number, entry in enumerate(audited, 1)]
    try:
        (root / "models").mkdir(parents=True, exist_ok=True)
        write_files(_files(root, audited, links))
        write_files(
            [(root / "audit.jsonl", render_lines(rows)), (root / "index.html", render_index(rows, links))]
        )
    except OSError as error:
        if is_new:
            shutil.rmtree(root, ignore_errors=True)
        raise unwritable("the folder cannot be written", folder, error) from error
    return root / "index.html"


def _link(number: int, entry: Audited) -> str | None:
    if entry.html is None:
        return None
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(entry.row.path).stem)[:80]
    return f"models/{number:03}-{name}.html"


def _files(root: Path, audited: Sequence[Audited], links: Sequence[str | None]) -> Iterator[tuple[Path, str]]:
    for entry, link in zip(audited, links, strict=True):
        if link is not None and entry.html is not None:
            yield root / link, entry.html
