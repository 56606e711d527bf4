"""Write rules/schemas/com.microsoft.json from ONNX Runtime's own operator schemas.

The front end needs the type variables of contrib operators without importing ONNX Runtime.

Usage: python tools/generate_contrib_schemas.py
"""

from __future__ import annotations

import json
from pathlib import Path

import onnxruntime
from onnxruntime.capi import _pybind_state

DOMAIN = "com.microsoft"
OUTPUT = Path(__file__).parents[1] / "rules" / "schemas" / f"{DOMAIN}.json"


def parameters(formal: list[object]) -> list[list[object]]:
    """Reduce formal parameters to [name, type string, option, is homogeneous]."""
    return [[p.name, p.typeStr, p.option.name, p.isHomogeneous] for p in formal]  # type: ignore[attr-defined]


def main() -> None:
    schemas = {
        s.name: {
            "since": s.since_version,
            "inputs": parameters(s.inputs),
            "outputs": parameters(s.outputs),
            "types": {t.type_param_str: sorted(t.allowed_type_strs) for t in s.type_constraints},
        }
        for s in _pybind_state.get_all_operator_schema()
        if s.domain == DOMAIN
    }
    lines = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(schemas.items()))
    source = f"onnxruntime {onnxruntime.__version__} get_all_operator_schema()"
    OUTPUT.write_text(f'{{"source": "{source}",\n"operators": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main()
