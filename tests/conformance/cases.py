"""The committed cases: small models that make FP16 conversion go wrong, and what a right conversion keeps."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

FOLDER = Path(__file__).parents[1] / "cases"


@dataclass(frozen=True)
class Case:
    """One case; `tolerances` is per output, the last one repeats."""

    name: str
    category: str
    compare: str
    tolerances: tuple[float, ...]
    max_casts: int | None
    options: dict[str, Any]
    external: bool

    @property
    def feeds(self) -> Path:
        return FOLDER / f"{self.name}.npz"

    def prepare(self, folder: Path) -> Path:
        """Copy the model into a folder, with external weights or without value_info if the case says so."""
        path = folder / f"{self.name}.onnx"
        if not (self.external or self.options.get("disable_shape_infer")):
            shutil.copy(FOLDER / path.name, path)
            return path
        model = onnx.load(FOLDER / path.name)
        if self.options.get("disable_shape_infer"):
            del model.graph.value_info[:]
        if self.external:
            onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
        else:
            onnx.save(model, path)
        return path

    def keep_fp32(self) -> tuple[str, ...]:
        """What the user keeps in FP32, as patterns of ours (those that match something)."""
        if self.options.get("block_all_nodes"):
            return ("*",)
        model = onnx.load(FOLDER / f"{self.name}.onnx", load_external_data=False)
        types = {n.op_type for n in model.graph.node}
        blocked = [*self.options.get("op_block_list", ()), *self.options.get("op_block_list_extra", ())]
        return (
            *self.options.get("node_block_list", ()),
            *(f"type:{t}" for t in blocked if t in types),
        )


def all_cases() -> list[Case]:
    raw = json.loads((FOLDER / "cases.json").read_text())

    def read() -> Iterator[Case]:
        for name, case in sorted(raw.items()):
            tolerance = case["rel_tol"]
            yield Case(
                name,
                case["category"],
                case["compare"],
                tuple(tolerance) if isinstance(tolerance, list) else (tolerance,),
                case.get("max_casts"),
                case.get("options") or {},
                bool(case.get("external_data")),
            )

    return list(read())


def relative_error(reference: np.ndarray, candidate: np.ndarray) -> float:
    """max|error| / max|reference| over the elements that are finite in the reference."""
    finite = np.isfinite(reference)
    if not np.array_equal(finite, np.isfinite(candidate) & finite) or not finite.any():
        return 0.0 if not finite.any() else float("inf")
    difference = np.abs(candidate[finite].astype(np.float64) - reference[finite])
    scale = float(np.abs(reference[finite]).max())
    return float(difference.max()) / scale if scale else float(difference.max())
