"""Write docs/coverage.md: per operator and opset the FP16 slots, the class, kernels and tests.

From the operator schemas of the installed onnx and of rules/schemas, the rule book, the kernel lists of the
targets, and the test models. Usage: python -m tools.generate_coverage
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import onnx
import onnxruntime
from onnx.backend.test.case.node import collect_testcases

from fp16conv.frontends.schemas import Schema, find_schema
from fp16conv.rulebook.book import RuleBook, load_book
from fp16conv.rulebook.schema import Target
from tests.conformance.one_op_models import LEFT_OUT, Signature, all_versions
from tests.strategies import example

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "docs" / "coverage.md"
CASES = ROOT / "tests" / "cases"
TARGETS = {"CUDA": "onnxruntime-cuda", "CPU": "onnxruntime-cpu"}
SEEDS = 100  # random graphs that show which operators they hold
KERNELS = {"": "none", "f": "FP32", "h": "FP16", "fh": "both"}

HEAD = """# Coverage

Written by `python -m tools.generate_coverage` from onnx {onnx} and ONNX Runtime {runtime}, the rule book
and the kernel lists of the targets; a test keeps it current. One line per operator and opset at which its
schema changed; operators whose schema admits no FP16 are listed at the end.

* **FP16 slots**: type variables that can be FP16, and the inputs -> outputs that change with them.
  Variables joined by `+` change together.
* **Class**: verdict of the operator rule and its id (`fp16conv rules explain ID`). Idioms, numbers and the
  target can override it.
* **CUDA**, **CPU**: what ONNX Runtime has kernels for at this opset: FP32, FP16, both or none; `body` where
  the operator has none and runs as the body of its schema's function.
* **Tests**: `one-op`: each variable alone in FP16 (`tests/conformance/test_one_op.py`); `random graphs`:
  those of `tests/property`; then how many of onnx's node models and of the cases in `tests/cases` hold the
  operator, at any opset.

{count} operator versions of {operators} operators.

| Operator | Opset | FP16 slots | Class | CUDA | CPU | Tests |
|---|---|---|---|---|---|---|
"""


def main() -> None:
    OUTPUT.write_text(render(), encoding="utf-8")


def render() -> str:
    """The page."""
    book = load_book()
    versions = [s for s in all_versions() if not s.is_deprecated]
    floating = [s for s in versions if s.symbols()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # onnx computes overflows and divisions by zero on purpose
        nodes = Counter(_operators(case.model for case in collect_testcases(None)))
    cases = Counter(_operators(onnx.load(p, load_external_data=False) for p in CASES.glob("*.onnx")))
    drawn = set(_operators(map(example, range(SEEDS))))
    rows = [_row(s, book, nodes, cases, drawn) for s in floating]
    names = {_key(s) for s in floating}
    others = sorted({_key(s) for s in versions} - names, key=str.lower)
    versions_used = {"onnx": onnx.__version__, "runtime": onnxruntime.__version__}
    head = HEAD.format(**versions_used, count=len(rows), operators=len(names))
    tail = f"\n## No FP16 by schema\n\n{', '.join(others)}.\n"
    return head + "".join(f"| {' | '.join(row)} |\n" for row in rows) + tail


def _key(signature: Signature) -> str:
    return f"{signature.domain}::{signature.name}" if signature.domain else signature.name


def _row(
    signature: Signature,
    book: RuleBook,
    nodes: Mapping[str, int],
    cases: Mapping[str, int],
    drawn: Collection[str],
) -> list[str]:
    key = _key(signature)
    schema = find_schema(signature.domain, signature.name, signature.since)
    assert schema is not None, key
    rule = book.base_rule(key)
    verdict = f"{rule.verdict} `{rule.id}`" if rule is not None else "deny (no rule)"
    kernels = [_kernels(book.target(t), key, signature.since) for t in TARGETS.values()]
    tests = [] if signature.name in LEFT_OUT else ["one-op"]
    if key in drawn:
        tests.append("random graphs")
    if nodes.get(key):
        tests.append(f"node models: {nodes[key]}")
    if cases.get(key):
        tests.append(f"cases: {cases[key]}")
    return [
        key,
        str(signature.since),
        _slots(schema) or "none",
        verdict,
        *kernels,
        ", ".join(tests) or "none",
    ]


def _slots(schema: Schema) -> str:
    tied = "+".join(s for s in schema.types if s in schema.equal)
    found: dict[str, tuple[list[str], list[str]]] = {}
    for side, parameters in enumerate((schema.inputs, schema.outputs)):
        for parameter in parameters:
            symbol = parameter.type_str
            if symbol in schema.types and schema.admits_fp16(symbol):
                group = tied if symbol in schema.equal else symbol
                name = f"{parameter.name}..." if parameter.is_variadic else parameter.name
                found.setdefault(group, ([], []))[side].append(name)
    return "; ".join(
        f"`{symbol}`: {' '.join(inputs)} -> {' '.join(outputs)}".replace(":  ->", ": ->").strip()
        for symbol, (inputs, outputs) in found.items()
    )


def _kernels(target: Target, key: str, opset: int) -> str:
    assert target.kernels is not None
    if key in target.inlined:
        return "body"
    rows = [
        k for k in target.kernels.get(key, ()) if k.since <= opset and (k.until is None or opset <= k.until)
    ]
    letters = {letter for row in rows for types in row.types.values() for letter in types}
    if rows and not any(row.types for row in rows):
        letters = {"f", "h"}  # not constrained
    return KERNELS["".join(sorted(letters))]


def _operators(models: Iterable[onnx.ModelProto]) -> Iterator[str]:
    """Operators in the models, each once per model."""
    for model in models:
        nodes = [*model.graph.node, *(n for f in model.functions for n in f.node)]
        yield from sorted(set(_keys(nodes)))


def _keys(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    for node in nodes:
        yield f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        for attribute in node.attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                yield from _keys(graph.node)


if __name__ == "__main__":
    main()
