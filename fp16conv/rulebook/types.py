"""What the rule book says about a model: verdicts with their reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["Authority", "Group", "Judgement", "PatternHit", "Reason", "Verdict", "Verdicts"]


class Verdict(StrEnum):
    """Class of a type variable.

    ALLOW  compute-bound: runs in FP16.
    INFER  fine in FP16 if its neighbours are.
    FOLLOW moves data: takes the neighbours' type at no cost.
    DENY   range or precision sensitive: stays FP32.
    NEVER  not floating, or FP16 is illegal here: cannot change.
    """

    ALLOW = "allow"
    INFER = "infer"
    FOLLOW = "follow"
    DENY = "deny"
    NEVER = "never"


class Authority(StrEnum):
    """Who decided, weakest first; the later one wins."""

    BUILT_IN = "built-in"
    EVIDENCE = "evidence"
    PROFILE = "profile"
    RULES_FILE = "rules file"
    COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something was decided.

    Args:
        rule: id of the rule (`exp-overflow`), or `keep-fp32`, `planner`, ... for non-rule reasons.
        text: one sentence for people; names the numbers.
        numbers: the figures behind the text, by name.
        authority: who says so.
    """

    rule: str
    text: str
    authority: Authority = Authority.BUILT_IN
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Judgement:
    """Verdict of one type variable, reasons strongest first."""

    verdict: Verdict
    reasons: tuple[Reason, ...]

    @property
    def is_commanded(self) -> bool:
        """Whether a flag of the command line decides: no measurement overrules it."""
        return bool(self.reasons) and self.reasons[0].authority is Authority.COMMAND_LINE


@dataclass(frozen=True, slots=True)
class PatternHit:
    """An idiom over several operators that a pattern rule recognized.

    Args:
        rule: id of the pattern rule.
        verdict: what the rule says about every type variable of the hit.
        typevars: ids of the type variables inside, ascending.
        reason: why, naming the numbers of this hit.
        one_precision: all of them must end in one precision, so that the runtime can fuse them.
        saturated: ids of constant values that act as infinity in the idiom.
    """

    rule: str
    verdict: Verdict
    typevars: tuple[int, ...]
    reason: Reason
    one_precision: bool = False
    saturated: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """Type variables that must end in one precision (a pattern's interior, a kernel combination).

    What the command line forces into FP16 leaves the group of a pattern; a kernel combination always holds.
    """

    typevars: tuple[int, ...]
    reason: Reason


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Judgement per type variable (indexed by its id), equality groups, and saturating constants.

    `saturated` maps constant values that act as infinity (masks, Clip/Pad bounds, fill values) to the
    reason: in FP16 they become +-65504 instead of keeping their consumer in FP32. `lowered` maps operators
    that the target has no FP16 kernel for, but that others compute exactly, to the reason. `folded` maps
    BatchNormalizations whose statistics leave FP16's range to the reason why Mul and Add stand in for them.
    `rescaled` maps products whose results leave the range to the reason, which names the power of two.
    """

    judgements: tuple[Judgement, ...]
    groups: tuple[Group, ...] = ()
    saturated: Mapping[int, Reason] = field(default_factory=dict)
    lowered: Mapping[int, Reason] = field(default_factory=dict)
    folded: Mapping[int, Reason] = field(default_factory=dict)
    rescaled: Mapping[int, Reason] = field(default_factory=dict)
