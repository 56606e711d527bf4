"""How far one set of outputs is from another: streaming metrics and the verdict per output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["ATOL", "RTOL", "OutputComparison", "OutputMetrics"]

RTOL: Final = 0.02  # relative L2 error: 34 dB of signal to noise
ATOL: Final = 0.001  # root mean square error allowed whatever the signal

_CHUNK: Final = 1 << 15  # elements widened to float64 at a time: two arrays of them stay in the cache

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class OutputMetrics:
    """Distance of one output from its reference, and the verdict on it.

    Args:
        name: output name.
        kind: `float`, `integer` (bool too), `string`, or `empty` where no element was seen.
        elements: elements compared over all batches.
        relative_l2: ||d||2 / ||ref||2 over what is finite on both sides; None where the reference is all
            zero and the difference is not, and where the candidate leaves nothing finite.
        rms_error: ||d||2 / sqrt(n).
        rms_reference: ||ref||2 / sqrt(n).
        max_abs: largest absolute difference.
        snr_db: 20 log10(||ref||2 / ||d||2); None where the difference is zero (infinite) or undefined.
        cosine: cosine similarity; None where one side is all zero.
        top1_agreement: share of rows whose largest class is the same; None for what is no class score.
        reference_accuracy: share of rows that the reference gets right; None without labels.
        accuracy: share of rows that the candidate gets right; None without labels.
        new_nan: elements that are NaN in the candidate only.
        new_inf: elements that are infinite in the candidate only (or with the other sign).
        lost_nonfinite: elements that are NaN or infinite in the reference only; left out of the norms.
        changed: integers, bools or strings that differ.
        structure: what differs in shape, dtype class or number of elements, empty if nothing.
        allowed_error: rtol * ||ref||2 + atol * sqrt(n), divided by sqrt(n): comparable to rms_error.
        ok: the verdict.
        problems: why not, one sentence each.
    """

    name: str
    kind: str
    elements: int
    relative_l2: float | None
    rms_error: float
    rms_reference: float
    max_abs: float
    snr_db: float | None
    cosine: float | None
    top1_agreement: float | None
    reference_accuracy: float | None
    accuracy: float | None
    new_nan: int
    new_inf: int
    lost_nonfinite: int
    changed: int
    structure: str
    allowed_error: float
    ok: bool
    problems: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; what is undefined or infinite is null."""
        plain = asdict(self)
        plain["problems"] = list(self.problems)
        for key, value in plain.items():
            if isinstance(value, float) and not math.isfinite(value):
                plain[key] = None
        return plain

    @property
    def badness(self) -> float:
        """Error over the allowed error: above 1 the verdict is no; infinite where no norm can tell."""
        if self.ok:
            return min(self.rms_error / self.allowed_error, 1.0) if self.allowed_error else 0.0
        if self.new_nan or self.new_inf or self.structure or not self.allowed_error:
            return math.inf
        share_changed = self.changed / self.elements if self.elements else 0.0
        return max(self.rms_error / self.allowed_error, 1.0 + share_changed)


class OutputComparison:
    """Collects the differences of one output over batches; norms in float64.

    Args:
        name: output name.
        scores: whether the last axis may be read as class scores (top-1 agreement, accuracy).

    Example:
        >>> c = OutputComparison("y")
        >>> c.update(np.array([3.0, 4.0], np.float32), np.array([3.0, 4.5], np.float32))
        >>> round(c.metrics().relative_l2, 3), c.metrics().ok
        (0.1, False)
    """

    def __init__(self, name: str, *, scores: bool = True) -> None:
        self._name = name
        self._scores = scores
        self._kinds: set[str] = set()
        self._elements = 0
        self._finite = 0
        self._difference2 = 0.0
        self._reference2 = 0.0
        self._candidate2 = 0.0
        self._dot = 0.0
        self._max_abs = 0.0
        self._new_nan = 0
        self._new_inf = 0
        self._lost = 0
        self._changed = 0
        self._structure = ""
        self._integer_structure_only = True
        self._rows = 0
        self._agreeing = 0
        self._labelled = 0
        self._reference_right = 0
        self._candidate_right = 0

    def update(self, reference: Any, candidate: Any, labels: Array | None = None) -> None:
        """Take in one batch.

        Args:
            reference: array, list of arrays (a sequence), or None (an empty optional).
            candidate: the same from the other model; FP16 and FP32 count as the same kind.
            labels: int, shape of the output without its last axis (or of an integer output).
        """
        if isinstance(reference, (list, tuple)) or isinstance(candidate, (list, tuple)):
            self._update_sequence(reference, candidate)
            return
        if reference is None or candidate is None:
            if reference is not candidate:
                self._note("an optional is empty on one side only", floating=True)
            return
        if isinstance(reference, dict) or isinstance(candidate, dict):
            self._update_map(reference, candidate)
            return
        ref, cand = np.asarray(reference), np.asarray(candidate)
        kind, other = _kind(ref), _kind(cand)
        self._kinds.add(kind)
        if kind != other:
            self._note(f"{ref.dtype} became {cand.dtype}", floating=True)
        elif ref.shape != cand.shape:
            self._note(f"shape {_show(ref.shape)} became {_show(cand.shape)}", floating=kind == "float")
        elif kind == "float":
            self._elements += ref.size
            self._update_floats(ref.reshape(-1), cand.reshape(-1))
            self._update_classes(ref, cand, labels)
        else:
            self._elements += ref.size
            self._changed += int(np.count_nonzero(ref != cand))
            if labels is not None and kind == "integer" and labels.size == ref.size:
                self._count_right(ref.reshape(-1), cand.reshape(-1), labels.reshape(-1))

    def _update_sequence(self, reference: Any, candidate: Any) -> None:
        both = isinstance(reference, (list, tuple)) and isinstance(candidate, (list, tuple))
        if not both or len(reference) != len(candidate):
            before = len(reference) if isinstance(reference, (list, tuple)) else "no"
            after = len(candidate) if isinstance(candidate, (list, tuple)) else "no"
            self._note(f"a sequence of {before} elements became one of {after}", floating=True)
            return
        for ref, cand in zip(reference, candidate, strict=True):
            self.update(ref, cand)

    def _update_map(self, reference: Any, candidate: Any) -> None:
        both = isinstance(reference, dict) and isinstance(candidate, dict)
        if not both or reference.keys() != candidate.keys():
            self._note("the keys of a map changed", floating=True)
            return
        for key in sorted(reference):
            self.update(np.asarray(reference[key]), np.asarray(candidate[key]))

    def _note(self, text: str, *, floating: bool) -> None:
        self._structure = self._structure or text
        self._integer_structure_only &= not floating

    def _update_floats(self, reference: Array, candidate: Array) -> None:
        for start in range(0, reference.size, _CHUNK):
            ref = reference[start : start + _CHUNK].astype(np.float64)
            cand = candidate[start : start + _CHUNK].astype(np.float64)
            squares = _product(ref, ref), _product(cand, cand)
            if not (math.isfinite(squares[0]) and math.isfinite(squares[1])):  # one look at what is common
                ref, cand = self._drop_nonfinite(ref, cand)
                squares = _product(ref, ref), _product(cand, cand)
            if not ref.size:
                continue
            difference = cand - ref
            self._finite += ref.size
            self._difference2 += _product(difference, difference)
            self._reference2 += squares[0]
            self._candidate2 += squares[1]
            self._dot += _product(ref, cand)
            self._max_abs = max(self._max_abs, float(difference.max()), -float(difference.min()))

    def _drop_nonfinite(self, ref: Array, cand: Array) -> tuple[Array, Array]:
        """Count NaN and infinities; what is finite on both sides is left."""
        finite_ref, finite_cand = np.isfinite(ref), np.isfinite(cand)
        both = finite_ref & finite_cand
        self._new_nan += int(np.count_nonzero(np.isnan(cand) & ~np.isnan(ref)))
        self._new_inf += int(np.count_nonzero(np.isinf(cand) & (cand != ref) & ~np.isnan(ref)))
        self._lost += int(np.count_nonzero(~finite_ref & finite_cand))
        return ref[both], cand[both]

    def _update_classes(self, ref: Array, cand: Array, labels: Array | None) -> None:
        if not self._scores or ref.ndim < 2 or ref.shape[-1] < 2 or not ref.size:
            return
        ref_class, cand_class = _top1(ref), _top1(cand)
        self._rows += ref_class.size
        self._agreeing += int(np.count_nonzero(ref_class == cand_class))
        if labels is not None and labels.size == ref_class.size:
            self._count_right(ref_class, cand_class, labels.reshape(-1))

    def _count_right(self, ref: Array, cand: Array, labels: Array) -> None:
        self._labelled += labels.size
        self._reference_right += int(np.count_nonzero(ref == labels))
        self._candidate_right += int(np.count_nonzero(cand == labels))

    def metrics(
        self, *, rtol: float = RTOL, atol: float = ATOL, allow_integer_changes: bool = False
    ) -> OutputMetrics:
        """The distances so far and the verdict.

        Args:
            rtol: allowed relative L2 error.
            atol: allowed root mean square error on top.
            allow_integer_changes: integers, bools and strings may differ, in number too.

        Returns:
            ok if ||d||2 <= rtol * ||ref||2 + atol * sqrt(n), no NaN or infinity is new, and no
            integer changed; a NaN or infinity that the reference has at the same place is not new.
        """
        n = max(self._finite, 1)
        error, signal = math.sqrt(self._difference2 / n), math.sqrt(self._reference2 / n)
        allowed = rtol * signal + atol
        problems = []
        if self._structure and not (allow_integer_changes and self._integer_structure_only):
            problems.append(self._structure)
        if self._new_nan:
            problems.append(f"{self._new_nan} of {self._elements} elements are newly NaN")
        if self._new_inf:
            problems.append(f"{self._new_inf} of {self._elements} elements are newly infinite")
        if not error <= allowed:
            problems.append(f"root mean square error {error:.3g} is above the allowed {allowed:.3g}")
        if self._changed and not allow_integer_changes:
            problems.append(f"{self._changed} of {self._elements} integers, bools or strings changed")
        norms = math.sqrt(self._reference2) * math.sqrt(self._candidate2)
        relative = error / signal if signal else (0.0 if not error else None)
        if not self._finite and self._new_nan + self._new_inf:
            relative = None  # nothing is left to measure
        return OutputMetrics(
            name=self._name,
            kind="/".join(sorted(self._kinds)) or "empty",
            elements=self._elements,
            relative_l2=relative,
            rms_error=error,
            rms_reference=signal,
            max_abs=self._max_abs,
            snr_db=20 * math.log10(signal / error) if signal and error else None,
            cosine=min(max(self._dot / norms, -1.0), 1.0) if norms else None,
            top1_agreement=self._agreeing / self._rows if self._rows else None,
            reference_accuracy=self._reference_right / self._labelled if self._labelled else None,
            accuracy=self._candidate_right / self._labelled if self._labelled else None,
            new_nan=self._new_nan,
            new_inf=self._new_inf,
            lost_nonfinite=self._lost,
            changed=self._changed,
            structure=self._structure,
            allowed_error=allowed,
            ok=not problems,
            problems=tuple(problems),
        )


def _product(a: Array, b: Array) -> float:
    """Scalar product, float64 [n]; np.dot starts threads for it, which then wait in a loop."""
    return float(np.einsum("i,i->", a, b))


def _kind(array: Array) -> str:
    if array.dtype.kind in "OUS":
        return "string"
    # Extension types such as bfloat16 have kind V; numpy can still widen them.
    return "integer" if array.dtype.kind in "biu" else "float"


def _top1(scores: Array) -> Array:
    """Index of the largest entry along the last axis; a NaN never wins."""
    best: Array = scores.argmax(axis=-1)
    if np.isnan(np.take_along_axis(scores, best[..., None], axis=-1)).any():  # to argmax a NaN is the largest
        best = np.where(np.isnan(scores), -np.inf, scores).argmax(axis=-1)
    return best.reshape(-1)


def _show(shape: Sequence[int]) -> str:
    return "x".join(str(n) for n in shape) or "scalar"
