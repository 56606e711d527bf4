"""The rule book as data: frozen records of what the TOML files hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fp16conv.rulebook.types import Verdict

__all__ = [
    "Condition",
    "ConstantMatch",
    "Context",
    "Example",
    "FactMatch",
    "Kernel",
    "Lowering",
    "Match",
    "Profile",
    "Role",
    "Rule",
    "RuleKind",
    "Target",
]


class RuleKind(StrEnum):
    """How a rule ranks among the built-in ones; later kinds are more specific and win."""

    BASE = "base"  # class of an operator: exactly one per operator
    REFINEMENT = "refinement"  # narrows a base class by attribute, type variable, slot, context
    EVIDENCE = "evidence"  # speaks about numbers: constants or ranges


class Role(StrEnum):
    """What a constant does where it is read."""

    NUMBER = "number"  # a weight, a factor: its value matters
    INFINITY = "infinity"  # a bound, mask or fill value: any very large number does the same
    ADDITIVE_MASK = "additive-mask"  # very large, and added to scores
    MASK_SCALE = "mask-scale"  # very large, and multiplied with a mask of zeros and ones
    EPSILON = "epsilon"  # tiny, and guards a division, logarithm or root


@dataclass(frozen=True, slots=True)
class Condition:
    """`metric` lies above (exclusive) and/or below (exclusive) a limit.

    Args:
        headroom: multiply the measured figure by the profile's headroom for its origin first.
    """

    metric: str
    above: float | None = None
    below: float | None = None
    headroom: bool = False


@dataclass(frozen=True, slots=True)
class ConstantMatch:
    """Some constant read at the type variable meets every condition.

    Args:
        role: roles it may have there; empty: any.
        slot: input slots it may be read at; empty: any.
        offset_attribute: float attribute of the operator that is added to the constant before
            its rounding error is judged (the epsilon of a normalization).
    """

    role: tuple[Role, ...] = ()
    slot: tuple[int, ...] = ()
    conditions: tuple[Condition, ...] = ()
    offset_attribute: str = ""


@dataclass(frozen=True, slots=True)
class FactMatch:
    """Some value at the type variable (`on`: input, output or any) meets every condition."""

    on: str
    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Context:
    """Neighbours an operator must not have, and which axes it works on.

    Args:
        not_fed_by: producers of its first input it must not have; `square` means x*x or x**2.
        not_feeding: consumers of its outputs it must not have.
        trailing_axes: it reduces exactly the last n axes of a tensor of rank n + 2.
    """

    not_fed_by: tuple[str, ...] = ()
    not_feeding: tuple[str, ...] = ()
    trailing_axes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Match:
    """What a rule applies to; every part that is given must hold.

    Args:
        op: operator keys, `Exp` or `com.microsoft::Gelu`; globs where a `*` or `?` appears.
        not_op: operator keys it does not apply to.
        domain: domains (`ai.onnx` is the empty one).
        name: globs on the operator's name.
        opset: lowest and highest opset, inclusive.
        symbol: type variable names.
        slot: input slots one of which must belong to the type variable.
        input_count: lowest and highest number of inputs, inclusive.
        attribute: attribute -> admitted values; the empty string admits an absent attribute.
        target_accumulates: `half` or `float`: what the target's reductions accumulate in.
    """

    op: tuple[str, ...] = ()
    not_op: tuple[str, ...] = ()
    domain: tuple[str, ...] = ()
    name: tuple[str, ...] = ()
    opset: tuple[int, int] | None = None
    symbol: tuple[str, ...] = ()
    slot: tuple[int, ...] = ()
    input_count: tuple[int, int] | None = None
    attribute: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    context: Context | None = None
    constant: ConstantMatch | None = None
    fact: FactMatch | None = None
    target_accumulates: str = ""

    @property
    def kind(self) -> RuleKind:
        if self.constant or self.fact:
            return RuleKind.EVIDENCE
        narrow = (self.not_op, self.domain, self.name, self.opset, self.symbol, self.slot)
        more = (self.input_count, self.attribute, self.context, self.target_accumulates)
        return RuleKind.REFINEMENT if any(narrow) or any(more) else RuleKind.BASE


@dataclass(frozen=True, slots=True)
class Example:
    """A tiny graph in ONNX text that the rule flags, or leaves alone.

    Args:
        flagged: whether the rule must fire on it.
        graph: `(float[2] x) => (float[2] y) { y = Exp(x) }`.
        opset: of the default domain.
        facts: value name -> RangeFact fields.
        target: name of the target it is judged for.
    """

    flagged: bool
    graph: str
    opset: int = 21
    facts: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    target: str = "onnxruntime-cuda"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Args:
        id: names the fault in kebab-case (`exp-overflow`).
        name: headline for people.
        verdict: class of the type variables it matches.
        rationale: the arithmetic behind it.
        evidence: sources.
        relaxed: class when the target runs it as one kernel that accumulates in FP32 and the
            range is known to be safe; None: no relaxation.
        text: template of the reason's sentence for rules about numbers; fields: value, measured,
            limit, origin, headroom.
        file: where it comes from.
        builtin: False for a user's rule.
    """

    id: str
    name: str
    verdict: Verdict
    match: Match
    rationale: str = ""
    evidence: tuple[str, ...] = ()
    relaxed: Verdict | None = None
    text: str = ""
    examples: tuple[Example, ...] = ()
    file: str = ""
    builtin: bool = True

    @property
    def kind(self) -> RuleKind:
        return self.match.kind


@dataclass(frozen=True, slots=True)
class Profile:
    """A policy over the rules.

    Args:
        maps: verdict of the rules -> verdict of the profile.
        relaxed: use the relaxed verdicts of operators where they are safe.
        relief: use the relaxed verdicts of idioms where measured numbers show no harm.
        evidence, patterns, kernels, saturate: whether numbers, idioms and the target's kernel
            coverage are heeded, and constants that act as infinity saturate.
        headroom: factor per origin of a fact on observed magnitudes.
    """

    id: str
    name: str
    description: str
    maps: Mapping[Verdict, Verdict] = field(default_factory=dict)
    relaxed: bool = False
    relief: bool = False
    evidence: bool = True
    patterns: bool = True
    kernels: bool = True
    saturate: bool = True
    headroom: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A registered kernel: opset range and, per type variable, `f` (FP32) and/or `h` (FP16).

    An empty string: neither. A type variable that is missing is not constrained.
    """

    since: int
    until: int | None
    types: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Lowering:
    """Other operators that compute the same, for opsets at which the target lacks the FP16 kernel.

    Args:
        op: operator key.
        since: first opset.
        until: last opset.
        by: operators that stand in for it.
        rationale: why they compute the same.
    """

    op: str
    since: int
    until: int
    by: tuple[str, ...]
    rationale: str


@dataclass(frozen=True, slots=True)
class Target:
    """What will run the model.

    Args:
        accumulates: `float` or `half`: what reductions accumulate in.
        fused_norms: softmax and norms run as one kernel that computes in FP32.
        kernels: operator key -> kernels; None when the target's coverage is not known.
        inlined: operators without a kernel that run as the body of their schema's function.
        lowerings: operators that run in FP16 as other operators.
    """

    id: str
    name: str
    description: str
    source: str
    accumulates: str
    fused_norms: bool
    kernels: Mapping[str, tuple[Kernel, ...]] | None = None
    inlined: frozenset[str] = frozenset()
    lowerings: tuple[Lowering, ...] = ()
