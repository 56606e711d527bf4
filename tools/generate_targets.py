"""Write rules/targets/<target>.kernels.json: which kernels a build of ONNX Runtime has.

Two sources:
  --from-json FILE  a dump: {"source": ..., "kernels": {"domain::op": [{since, until, types}]}}
  (default)         the installed onnxruntime's own `get_all_opkernel_def()` for `--provider`

Only FP32 ("f") and FP16 ("h") are kept: per operator rows [since, until, {type variable: letters}]. An
empty string: neither; a variable that is left out is not constrained. `inlined` lists the operators that
have no kernel but a function body in their schema, so the runtime expands them into other operators.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

LETTERS = {"tensor(float)": "f", "tensor(float16)": "h"}
LETTERS |= {f"seq({name})": letter for name, letter in LETTERS.items()}

Row = tuple[int, int | None, tuple[tuple[str, str], ...]]


def read_registry(provider: str) -> tuple[str, dict[str, list[dict[str, Any]]]]:
    """List the kernels that the installed ONNX Runtime registers for a provider."""
    import onnxruntime
    from onnxruntime.capi import _pybind_state as state

    kernels: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for kernel in state.get_all_opkernel_def():
        if kernel.provider != provider:
            continue
        since, until = kernel.version_range
        kernels[f"{kernel.domain or 'ai.onnx'}::{kernel.op_name}"].append(
            {
                "since": since,
                "until": None if until >= 2**31 - 1 else until,
                "types": dict(kernel.type_constraints),
            }
        )
    return f"onnxruntime {onnxruntime.__version__} {provider} kernel registry", kernels


def compact(rows: Iterable[Mapping[str, Any]]) -> list[list[Any]]:
    """Keep FP32 and FP16, and merge rows that differ in one type variable only."""
    rows = list(rows)
    floating = {s for row in rows for s, names in row["types"].items() if LETTERS.keys() & set(names)}
    table: set[Row] = set()
    for row in rows:
        types = {}
        for symbol, names in row["types"].items():
            if symbol in floating:
                types[symbol] = "".join(sorted({LETTERS[n] for n in names if n in LETTERS}))
        table.add((row["since"], row["until"], tuple(sorted(types.items()))))
    merged = True
    while merged:
        merged = False
        for row_a in _ordered(table):
            partner = next((b for b in _ordered(table) if (_union(row_a, b)) is not None), None)
            if partner is not None:
                union = _union(row_a, partner)
                assert union is not None
                table -= {row_a, partner}
                table.add(union)
                merged = True
                break
    return [[since, until, dict(types)] for since, until, types in _ordered(table)]


def _ordered(table: Iterable[Row]) -> list[Row]:
    return sorted(table, key=lambda row: (row[0], row[1] or 1 << 30, row[2]))


def _union(a: Row, b: Row) -> Row | None:
    if a == b or a[:2] != b[:2] or [s for s, _ in a[2]] != [s for s, _ in b[2]]:
        return None
    different = [i for i, (x, y) in enumerate(zip(a[2], b[2], strict=True)) if x != y]
    if len(different) != 1:
        return None
    i = different[0]
    letters = "".join(sorted(set(a[2][i][1] + b[2][i][1])))
    return (*a[:2], (*a[2][:i], (a[2][i][0], letters), *a[2][i + 1 :]))


def inlined_operators(kernels: Mapping[str, Any]) -> list[str]:
    """Operators of the ONNX schemas that have a function body and no kernel."""
    import onnx.defs

    names = set()
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.has_function or schema.has_context_dependent_function:
            names.add(f"{schema.domain}::{schema.name}" if schema.domain else schema.name)
    return sorted(names - set(kernels))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path, help="rules/targets/<target>.kernels.json")
    parser.add_argument("--from-json", type=Path)
    parser.add_argument("--provider", default="CUDAExecutionProvider")
    args = parser.parse_args()
    if args.from_json:
        data = json.loads(args.from_json.read_text(encoding="utf-8"))
        source, registry = data["source"], data["kernels"]
    else:
        source, registry = read_registry(args.provider)
    kernels = {op.removeprefix("ai.onnx::"): compact(rows) for op, rows in sorted(registry.items())}
    lines = [f"{json.dumps(op)}: {json.dumps(rows, separators=(',', ':'))}" for op, rows in kernels.items()]
    inlined = json.dumps(inlined_operators(kernels))
    head = f'{{"source": {json.dumps(source)},\n"inlined": {inlined},\n"kernels": {{\n'
    text = head + ",\n".join(lines) + "}}\n"
    args.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
