"""The data of an HTML report: columns instead of rows, texts once, numbers to four digits, as safe JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from fp16conv.reporting.details import PRECISIONS, Details, ValueDetail
from fp16conv.reporting.report import Report
from fp16conv.reporting.sanitize import sanitize
from fp16conv.reporting.training import TrainAuditReport

__all__ = ["ALPHABET", "FLOOR", "build_payload", "dump_safely", "encode_bins"]

ALPHABET = ".0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""One character per bin: none, then shares from 10^FLOOR to 1 in even steps of the logarithm."""

FLOOR = -7


def dump_safely(data: object) -> str:
    r"""JSON that can stand inside a script element: it holds no `<`, `>` or `&`.

    Example:
        >>> dump_safely({"a": "</script>"})
        '{"a":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def build_payload(report: Report) -> dict[str, object]:
    """What the page's script draws: operators, the frontier of a tuning, the gradients of a training."""
    frontier = [
        [_short(point.seconds), _short(point.error), bool(point.chosen)]
        for point in getattr(report, "frontier", ())
    ]
    payload: dict[str, object] = {"frontier": frontier, "alphabet": ALPHABET, "floor": FLOOR}
    if isinstance(report, TrainAuditReport):
        payload["gradients"] = _gradients(report)
    if report.details is not None and report.details.operators:
        payload |= _operators(report.details)
    return payload


def _gradients(report: TrainAuditReport) -> dict[str, object]:
    return {
        "label": [f"{sanitize(note.name)} ({note.kind})" for note in report.gradients],
        "first": [note.first_exponent for note in report.gradients],
        "bins": [encode_bins(note.counts) for note in report.gradients],
        "zero": [_short(note.share_zeroed) for note in report.gradients],
        "scale": report.window.recommended,
        "open": report.window.is_open,
    }


class _Table:
    """Texts that occur many times, each stored once."""

    def __init__(self) -> None:
        self.rows: list[object] = []
        self._index: dict[object, int] = {}

    def add(self, key: object, row: object = None) -> int:
        """The number of `key`; `row` is what is stored for it, the key itself if None."""
        if key not in self._index:
            self._index[key] = len(self.rows)
            self.rows.append(key if row is None else row)
        return self._index[key]


def _operators(details: Details) -> dict[str, object]:
    types, blocks, scopes, verdicts, reasons = _Table(), _Table(), _Table(), _Table(), _Table()
    values = _Values()
    columns: dict[str, list[object]] = {
        name: []
        for name in (
            "label",
            "type",
            "block",
            "scope",
            "precision",
            "verdict",
            "reasons",
            "outputs",
            "macs",
            "error",
            "before",
            "added",
        )
    }
    for op in details.operators:
        row = {
            "label": sanitize(op.label),
            "type": types.add(sanitize(op.op_type)),
            "block": blocks.add("\0".join(map(sanitize, op.block))),
            "scope": scopes.add(sanitize(op.scope)),
            "precision": PRECISIONS.index(op.precision),
            "verdict": verdicts.add(op.verdict),
            "reasons": [
                reasons.add(
                    (r.rule, r.text, r.authority), [sanitize(r.rule), sanitize(r.text), sanitize(r.authority)]
                )
                for r in op.reasons
            ],
            "outputs": [values.add(value) for value in op.outputs],
            "macs": op.macs,
            "error": _short(op.error),
            "before": _short(op.error_in),
            "added": _short(op.error_added),
        }
        for name, column in columns.items():
            column.append(row[name])
    if any(op.line for op in details.operators):
        columns["line"] = [sanitize(op.line) for op in details.operators]
    return {
        "ops": columns,
        "types": types.rows,
        "blocks": blocks.rows,
        "scopes": scopes.rows,
        "verdicts": verdicts.rows,
        "reasons": reasons.rows,
        "rules": [
            [
                r.id,
                sanitize(r.name),
                r.verdict,
                sanitize(r.rationale),
                [*map(sanitize, r.sources)],
                sanitize(r.file),
            ]
            for r in details.rules
        ],
        "values": values.columns,
        "dtypes": values.dtypes.rows,
        "origins": values.origins.rows,
        "measured": any(op.error is not None for op in details.operators),
    }


class _Values:
    def __init__(self) -> None:
        self.dtypes, self.origins = _Table(), _Table()
        self.count = 0
        names = (
            "name",
            "dtype",
            "shape",
            "origin",
            "lo",
            "hi",
            "min",
            "rms",
            "over",
            "sub",
            "zero",
            "first",
            "bins",
            "bound",
        )
        self.columns: dict[str, list[object]] = {name: [] for name in names}

    def add(self, value: ValueDetail) -> int:
        row = {
            "name": sanitize(value.name),
            "dtype": self.dtypes.add(value.dtype),
            "shape": None
            if value.shape is None
            else [d if isinstance(d, int) else sanitize(d or "?") for d in value.shape],
            "origin": self.origins.add(value.origin),
            "lo": _short(value.lo),
            "hi": _short(value.hi),
            "min": _short(value.min_abs),
            "rms": _short(value.rms),
            "over": _short(value.overflow),
            "sub": _short(value.subnormal),
            "zero": _short(value.zeroed),
            "first": value.first_exponent,
            "bins": encode_bins(value.counts),
            "bound": None if value.bounds is None else [_short(bound) for bound in value.bounds],
        }
        for name, column in self.columns.items():
            column.append(row[name])
        self.count += 1
        return self.count - 1


def _short(number: float | None) -> float | int | str | None:
    """Four digits are what a reader sees; infinities as text."""
    if number is None:
        return None
    if math.isnan(number):
        return "nan"
    if math.isinf(number):
        return "inf" if number > 0 else "-inf"
    short = float(f"{number:.4g}")
    return int(short) if short.is_integer() and abs(short) < 1e9 else short


def encode_bins(counts: Sequence[int]) -> str:
    """Shares of a histogram as one character per bin (see ALPHABET).

    Example:
        >>> encode_bins([1, 0, 1]), encode_bins([1, 10**9])
        ('w.w', '0z')
    """
    total = sum(counts)
    steps = len(ALPHABET) - 2

    def code(count: int) -> str:
        if not count:
            return ALPHABET[0]
        place = round(steps * (1 - math.log10(count / total) / FLOOR))
        return ALPHABET[1 + min(max(place, 0), steps)]

    return "".join(map(code, counts))
