"""PrecisionPlan as JSON: canonical bytes out, strict checks in, edits replayed.

A plan file has one decision per line, so that people can search, diff and edit it: change a
decision's `"dtype"`, and `bind_plan` derives the casts anew.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import NoReturn, TypeVar

from fp16conv.errors import PlanError, unwritable
from fp16conv.files import read_regular, write_whole
from fp16conv.graph import DataType, ModelGraph, Use
from fp16conv.planning.casts import replan_casts
from fp16conv.planning.plan import Cast, Decision, PrecisionPlan
from fp16conv.planning.planner import label_of
from fp16conv.rulebook.folding import fold_batch_norm
from fp16conv.rulebook.rescaling import MAX_EXPONENT, exponents_of, find_region
from fp16conv.rulebook.types import Authority, Reason, Verdict

__all__ = ["MAX_BYTES", "SCHEMA", "bind_plan", "dump_plan", "load_plan", "parse_plan", "save_plan"]

SCHEMA = "fp16conv.plan/1"
MAX_BYTES = 1 << 29
"""Largest plan file that is read (a million decisions need about 400 MB)."""

_HINT = "write a fresh plan with 'fp16conv plan', then edit only \"dtype\" of decisions"
_Enum = TypeVar("_Enum", bound=StrEnum)
_Item = TypeVar("_Item")


def dump_plan(plan: PrecisionPlan) -> str:
    """Return the plan as canonical JSON text: same plan, same bytes.

    Raises:
        PlanError: `options` holds something JSON cannot.
    """
    try:
        head: list[tuple[str, str]] = [
            ("schema", _line(SCHEMA)),
            ("model_digest", _line(plan.model_digest)),
            ("rules_digest", _line(plan.rules_digest)),
            ("options", _line(_sorted(plan.options))),
            ("predicted", _line(_sorted(plan.predicted))),
            ("decisions", _lines([_dump_decision(x) for x in plan.decisions])),
            ("casts", _lines([_dump_cast(x) for x in plan.casts])),
            ("saturated", _dump_reasons("value", plan.saturated)),
            ("lowered", _dump_reasons("op", plan.lowered)),
            ("folded", _dump_reasons("op", plan.folded)),
            ("rescaled", _dump_reasons("op", plan.rescaled)),
        ]
    except (TypeError, ValueError) as error:
        raise PlanError("the plan cannot be written as JSON", why=str(error)) from error
    return "{\n" + ",\n".join(f"{_line(key)}: {text}" for key, text in head) + "\n}\n"


def save_plan(plan: PrecisionPlan, path: str | Path) -> None:
    """Write the plan; the file appears complete or not at all.

    Raises:
        PlanError: the file cannot be written.
        ConversionError: the disk is full.
    """
    target = Path(path)
    try:
        data = dump_plan(plan).encode("utf-8")
    except UnicodeEncodeError as error:
        raise PlanError("a name in the plan is not valid Unicode", where=str(target)) from error
    try:
        write_whole(target, data)
    except OSError as error:
        raise unwritable("cannot write the plan", str(target), error, PlanError) from error


def load_plan(path: str | Path, graph: ModelGraph | None = None) -> PrecisionPlan:
    """Read a plan file; with `graph`, also check it against the model (see `bind_plan`).

    Raises:
        PlanError: unreadable, malformed, or not of this model.
    """
    where = str(path)
    try:
        data = read_regular(path, MAX_BYTES)
    except OSError as error:
        raise PlanError("cannot read the plan", where=where, why=str(error)) from error
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PlanError("not a plan: not UTF-8 text", where=where, hint=_HINT) from error
    plan = parse_plan(text, where=where)
    return plan if graph is None else bind_plan(plan, graph, where=where)


def parse_plan(text: str, *, where: str = "plan") -> PrecisionPlan:
    """Parse the text of a plan. Nothing is executed, unknown keys are refused.

    Raises:
        PlanError: malformed; says at which entry.
    """
    try:
        data = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError as error:
        raise PlanError("not a plan: nested too deeply", where=where, hint=_HINT) from error
    except ValueError as error:
        raise PlanError("not a plan: invalid JSON", where=where, why=str(error), hint=_HINT) from error
    if isinstance(data, dict) and isinstance(data.get("schema"), str) and data["schema"] != SCHEMA:
        raise PlanError(
            f"unsupported plan schema {data['schema'][:80]!r}",
            where=where,
            hint=f"this version reads {SCHEMA}",
        )
    return _Reader(where).plan(data)


def bind_plan(plan: PrecisionPlan, graph: ModelGraph, *, where: str = "plan") -> PrecisionPlan:
    """Check a plan against its model and derive the casts from its (possibly edited) decisions.

    Raises:
        PlanError: other model, decisions that do not match its type variables, FP16 where it is
            illegal, or a precision change that no cast can make.
    """
    if plan.model_digest != graph.digest:
        raise PlanError(
            "the plan belongs to another model",
            where=where,
            why=f"it is bound to {plan.model_digest[:12]}, '{graph.source}' is {graph.digest[:12]}",
            hint="make a plan for this model with 'fp16conv plan'",
        )
    if len(plan.decisions) != len(graph.typevars):
        raise PlanError(
            f"{len(plan.decisions)} decisions, the model has {len(graph.typevars)} type variables",
            where=where,
            hint=_HINT,
        )
    for decision, variable in zip(plan.decisions, graph.typevars, strict=True):
        place = f"{where}: decisions[{variable.id}] ('{decision.label}', {decision.symbol})"
        expected = (variable.id, variable.op, label_of(graph, variable), variable.symbol)
        if (decision.typevar, decision.op, decision.label, decision.symbol) != expected:
            raise PlanError(
                f"does not describe type variable {variable.id} of the model, "
                f"'{expected[2]}' ({variable.symbol})",
                where=place,
                hint=_HINT,
            )
        if decision.dtype is DataType.FLOAT16 and (
            decision.verdict is Verdict.NEVER or not variable.admits_fp16
        ):
            raise PlanError("FP16 is illegal here", where=place, hint='set "dtype" back to "float"')
    consumed = len(graph.values)
    for value in plan.saturated:
        if value >= consumed:
            raise PlanError(f"saturates value {value}, which the model lacks", where=where, hint=_HINT)
    for op in plan.lowered:
        if op >= len(graph.ops):
            raise PlanError(f"lowers operator {op}, which the model lacks", where=where, hint=_HINT)
    _check_repairs(plan, graph, where)
    return dataclasses.replace(plan, casts=replan_casts(graph, plan.dtypes))


def _check_repairs(plan: PrecisionPlan, graph: ModelGraph, where: str) -> None:
    for op in plan.folded:
        if op >= len(graph.ops) or fold_batch_norm(graph, graph.ops[op]) is None:
            raise PlanError(f"operator {op} cannot be folded into Mul and Add", where=where, hint=_HINT)
    for op, exponent in exponents_of(plan.rescaled).items():
        if op >= len(graph.ops) or find_region(graph, graph.ops[op]) is None:
            raise PlanError(f"operator {op} cannot be rescaled", where=where, hint=_HINT)
        if not 0 < exponent <= MAX_EXPONENT:
            raise PlanError(f"operator {op} has exponent {exponent}", where=where, hint=_HINT)


def _line(data: object) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False)


def _lines(items: list[dict[str, object]]) -> str:
    return "[\n" + ",\n".join(_line(item) for item in items) + "\n]" if items else "[]"


def _sorted(data: object) -> object:
    if isinstance(data, Mapping):
        return {key: _sorted(data[key]) for key in sorted(data)}
    return [_sorted(item) for item in data] if isinstance(data, list | tuple) else data


def _dump_number(number: float) -> float | str:
    """JSON has no infinities: they travel as the strings `inf`, `-inf`, `nan`."""
    return number if math.isfinite(number) else str(float(number))


def _dump_reason(reason: Reason) -> dict[str, object]:
    return {
        "rule": reason.rule,
        "text": reason.text,
        "authority": reason.authority.value,
        "numbers": {key: _dump_number(reason.numbers[key]) for key in sorted(reason.numbers)},
    }


def _dump_reasons(key: str, reasons: Mapping[int, Reason]) -> str:
    return _lines([{key: index, "reason": _dump_reason(r)} for index, r in sorted(reasons.items())])


def _dump_decision(decision: Decision) -> dict[str, object]:
    return {
        "typevar": decision.typevar,
        "op": decision.op,
        "label": decision.label,
        "op_type": decision.op_type,
        "scope": decision.scope,
        "symbol": decision.symbol,
        "dtype": decision.dtype.value,
        "verdict": decision.verdict.value,
        "reasons": [_dump_reason(reason) for reason in decision.reasons],
    }


def _dump_cast(cast: Cast) -> dict[str, object]:
    return {
        "value": cast.value,
        "value_name": cast.value_name,
        "to": cast.to.value,
        "uses": [{"op": use.op, "slot": use.slot, "scope": use.scope} for use in cast.uses],
    }


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    data = dict(pairs)
    if len(data) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return data


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


class _Reader:
    """Strict reading of parsed JSON; every complaint names the entry."""

    def __init__(self, where: str) -> None:
        self._where = where

    def plan(self, data: object) -> PrecisionPlan:
        keys = ("schema", "model_digest", "rules_digest", "options", "predicted", "decisions", "casts")
        entry = self._object(data, "plan", (*keys, "saturated", "lowered", "folded", "rescaled"))
        self._text(entry["schema"], "schema")
        options = self._any_object(entry["options"], "options")
        predicted = self._any_object(entry["predicted"], "predicted")
        return PrecisionPlan(
            model_digest=self._text(entry["model_digest"], "model_digest"),
            rules_digest=self._text(entry["rules_digest"], "rules_digest"),
            options=options,
            decisions=self._each(entry["decisions"], "decisions", self._decision),
            casts=self._each(entry["casts"], "casts", self._cast),
            saturated=self._reasons(entry["saturated"], "saturated", "value"),
            lowered=self._reasons(entry["lowered"], "lowered", "op"),
            folded=self._reasons(entry["folded"], "folded", "op"),
            rescaled=self._reasons(entry["rescaled"], "rescaled", "op"),
            predicted={key: self._number(predicted[key], f"predicted.{key}") for key in predicted},
        )

    def _reasons(self, data: object, name: str, key: str) -> dict[int, Reason]:
        reasons: dict[int, Reason] = {}
        for number, item in enumerate(self._list(data, name)):
            at = f"{name}[{number}]"
            pair = self._object(item, at, (key, "reason"))
            reasons[self._id(pair[key], f"{at}.{key}")] = self._reason(pair["reason"], f"{at}.reason")
        return reasons

    def _decision(self, data: object, at: str) -> Decision:
        keys = ("typevar", "op", "label", "op_type", "scope", "symbol", "dtype", "verdict", "reasons")
        entry = self._object(data, at, keys)
        return Decision(
            typevar=self._id(entry["typevar"], f"{at}.typevar"),
            op=self._optional_id(entry["op"], f"{at}.op"),
            label=self._text(entry["label"], f"{at}.label"),
            op_type=self._text(entry["op_type"], f"{at}.op_type"),
            scope=self._text(entry["scope"], f"{at}.scope"),
            symbol=self._text(entry["symbol"], f"{at}.symbol"),
            dtype=self._dtype(entry["dtype"], f"{at}.dtype"),
            verdict=self._enum(Verdict, entry["verdict"], f"{at}.verdict"),
            reasons=self._each(entry["reasons"], f"{at}.reasons", self._reason),
        )

    def _cast(self, data: object, at: str) -> Cast:
        entry = self._object(data, at, ("value", "value_name", "to", "uses"))
        return Cast(
            value=self._id(entry["value"], f"{at}.value"),
            value_name=self._text(entry["value_name"], f"{at}.value_name"),
            to=self._dtype(entry["to"], f"{at}.to"),
            uses=self._each(entry["uses"], f"{at}.uses", self._use),
        )

    def _use(self, data: object, at: str) -> Use:
        entry = self._object(data, at, ("op", "slot", "scope"))
        return Use(
            self._optional_id(entry["op"], f"{at}.op"),
            self._id(entry["slot"], f"{at}.slot"),
            self._id(entry["scope"], f"{at}.scope"),
        )

    def _reason(self, data: object, at: str) -> Reason:
        entry = self._object(data, at, ("rule", "text", "authority", "numbers"))
        numbers = self._any_object(entry["numbers"], f"{at}.numbers")
        return Reason(
            rule=self._text(entry["rule"], f"{at}.rule"),
            text=self._text(entry["text"], f"{at}.text"),
            authority=self._enum(Authority, entry["authority"], f"{at}.authority"),
            numbers={key: self._number(numbers[key], f"{at}.numbers.{key}", True) for key in numbers},
        )

    def _each(self, data: object, at: str, read: Callable[[object, str], _Item]) -> tuple[_Item, ...]:
        return tuple(read(item, f"{at}[{i}]") for i, item in enumerate(self._list(data, at)))

    def _object(self, data: object, at: str, keys: tuple[str, ...]) -> dict[str, object]:
        entry = self._any_object(data, at)
        for key in keys:
            if key not in entry:
                self._fail(at, f"lacks '{key}'")
        for key in entry:
            if key not in keys:
                self._fail(at, f"unknown key {key[:80]!r}")
        return entry

    def _any_object(self, data: object, at: str) -> dict[str, object]:
        return data if isinstance(data, dict) else self._fail(at, "must be an object", data)

    def _list(self, data: object, at: str) -> list[object]:
        return data if isinstance(data, list) else self._fail(at, "must be a list", data)

    def _text(self, data: object, at: str) -> str:
        if not isinstance(data, str):
            self._fail(at, "must be a string", data)
        if any("\ud800" <= char <= "\udfff" for char in data):
            self._fail(at, "holds half of a surrogate pair")
        return data

    def _id(self, data: object, at: str) -> int:
        if isinstance(data, bool) or not isinstance(data, int) or not 0 <= data < 1 << 31:
            self._fail(at, "must be a whole number >= 0", data)
        return data

    def _optional_id(self, data: object, at: str) -> int | None:
        return None if data is None else self._id(data, at)

    def _number(self, data: object, at: str, infinite: bool = False) -> float:
        if infinite and isinstance(data, str) and data in ("inf", "-inf", "nan"):
            return float(data)
        if isinstance(data, bool) or not isinstance(data, int | float):
            self._fail(at, "must be a number", data)
        try:
            finite = math.isfinite(data)
        except OverflowError:  # an integer beyond every float
            finite = False
        return data if finite else self._fail(at, "must be a finite number")

    def _dtype(self, data: object, at: str) -> DataType:
        if data not in ("float", "float16"):
            self._fail(at, 'must be "float" or "float16"', data)
        return DataType(str(data))

    def _enum(self, kind: type[_Enum], data: object, at: str) -> _Enum:
        try:
            return kind(self._text(data, at))
        except ValueError:
            return self._fail(at, f"must be one of {', '.join(kind)}", data)

    def _fail(self, at: str, what: str, got: object = None) -> NoReturn:
        shown = ""
        if got is not None:
            shown = f", got {'a ' + type(got).__name__ if isinstance(got, list | dict) else repr(got)[:80]}"
        raise PlanError(f"'{at}' {what}{shown}", where=self._where, hint=_HINT)
