"""Template matching: finds the operators that together form an idiom, however its writer wrote it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from fp16conv.graph import Op
from fp16conv.rulebook.families import operands
from fp16conv.rulebook.index import GraphIndex
from fp16conv.rulebook.op_sets import COMMUTATIVE, TRANSPARENT
from fp16conv.rulebook.pattern_language import Alternatives, Call, Constant, Name, Template

__all__ = ["TemplateMatch", "match_template"]

BUDGET = 4000
"""Steps spent on one root before giving up: keeps matching linear in the operators."""
DEPTH = 10
"""Productions nested in each other: idioms are short, and a recursive one must end."""


_CONSTANT: Final = ""
_FILLED: Final = frozenset((_CONSTANT, "ConstantOfShape"))
"""Where the numbers of a constant come from: the model's file, or an operator that fills."""


@dataclass(frozen=True, slots=True)
class TemplateMatch:
    """One occurrence: its root, its operators by statement, and captured constants by name."""

    root: int
    ops: tuple[tuple[str, int], ...]
    captured: tuple[tuple[str, int], ...]
    free: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _State:
    bound: Mapping[str, int]
    ops: tuple[tuple[str, int], ...] = ()
    captured: tuple[tuple[str, int], ...] = ()

    def bind(self, name: str, value: int) -> _State:
        return _State({**self.bound, name: value}, self.ops, self.captured)

    def add(self, line: str, *ops: int) -> _State:
        return _State(self.bound, (*self.ops, *((line, op) for op in ops)), self.captured)


class _BudgetError(Exception):
    """The budget of a root is spent."""


class _Matcher:
    def __init__(self, index: GraphIndex, template: Template) -> None:
        self.index, self.template = index, template
        self.steps = 0
        self._sources: dict[int, frozenset[str] | None] = {}

    def match_root(self, op: Op) -> TemplateMatch | None:
        self.steps = 0
        root = self.template.root
        try:
            for option in root.body.options:
                if not isinstance(option, Call) or self.index.kinds[op.id] not in option.types:
                    continue
                if self._fits(option, op):
                    for state in self._call(option, op, _State({}), root.name, 0):
                        return TemplateMatch(op.id, state.ops, state.captured, state.bound)
        except _BudgetError:
            return None
        return None

    def _alternatives(
        self, node: Alternatives, value: int, state: _State, line: str, depth: int
    ) -> Iterator[_State]:
        self.steps += 1
        if self.steps > BUDGET:
            raise _BudgetError
        for option in node.options:
            if isinstance(option, Constant):
                yield from self._constant(option, value, state)
            elif isinstance(option, Name):
                yield from self._name(option.name, value, state, depth)
            else:
                yield from self._producer(option, value, state, line, depth)

    def _constant(self, node: Constant, value: int, state: _State) -> Iterator[_State]:
        found = self.index.numbers(value)
        if found is not None and node.condition.holds(found[1]):
            captured = (*state.captured, (node.name, found[0])) if node.name else state.captured
            yield _State(state.bound, state.ops, captured)

    def _name(self, name: str, value: int, state: _State, depth: int) -> Iterator[_State]:
        if name == "_":
            yield state
            return
        statement = self.template.statements.get(name)
        if statement is None:
            source, _ = self.index.see_through(value)
            known = state.bound.get(name)
            if known is None:
                yield state.bind(name, source)
            elif known == source:
                yield state
            return
        if not statement.binds:
            if depth < DEPTH:
                yield from self._alternatives(statement.body, value, state, name, depth + 1)
            return
        source, passed = self.index.see_through(value)
        known = state.bound.get(name)
        if known is not None:
            if known == source:
                yield state.add(name, *passed)
            return
        for matched in self._alternatives(statement.body, value, state, name, depth):
            yield matched.bind(name, source)

    def _producer(self, call: Call, value: int, state: _State, line: str, depth: int) -> Iterator[_State]:
        passed: list[int] = []
        while True:
            op = self.index.graph.producer(value)
            if op is None:
                return
            kind = self.index.kinds[op.id]
            if kind in call.types and op.outputs[0] == value and self._fits(call, op):
                yield from self._call(call, op, state.add(line, *passed), line, depth)
            transparent = self.index.transparent(value)
            if transparent is None or transparent.inputs[0] is None:
                return
            passed.append(transparent.id)
            value = transparent.inputs[0]

    def _call(self, call: Call, op: Op, state: _State, line: str, depth: int) -> Iterator[_State]:
        inputs = operands(op)
        state = state.add(line, op.id)
        yield from self._args(call.args, inputs[: len(call.args)], state, line, depth)
        if self._swaps(call, op):
            yield from self._args(call.args, inputs[::-1], state, line, depth)

    def _fits(self, call: Call, op: Op) -> bool:
        """Whether attributes and the operators above allow a match: no look further up without need."""
        inputs = operands(op)
        if len(call.args) > len(inputs):
            return False
        if not all(_compare(op.attrs.get(key), how, value) for key, how, value in call.attrs):
            return False
        return self._may_be(call.args, inputs) or (
            self._swaps(call, op) and self._may_be(call.args, inputs[::-1])
        )

    def _swaps(self, call: Call, op: Op) -> bool:
        """Whether the operands may also be read the other way round."""
        inputs = operands(op)
        is_pair = len(call.args) == len(inputs) == 2
        return is_pair and self.index.kinds[op.id] in COMMUTATIVE and inputs[0] != inputs[1]

    def _may_be(self, args: tuple[Alternatives, ...], values: tuple[int | None, ...]) -> bool:
        for arg, value in zip(args, values, strict=False):
            sources = self._sources_of(arg)
            if sources is None or value is None:
                continue
            op = self.index.graph.producer(value)
            kind = None if op is None else self.index.kinds[op.id]
            is_made = kind is not None and (kind in sources or kind in TRANSPARENT)
            if not is_made and not (_CONSTANT in sources and value in self.index.graph.constants):
                return False
        return True

    def _sources_of(self, node: Alternatives) -> frozenset[str] | None:
        """Operators that can make such a value (or a chain of transparent ones can), None for any."""
        if id(node) not in self._sources:
            self._sources[id(node)] = None  # what is defined by itself may be anything
            found: set[str] = set()
            for option in node.options:
                more = self._sources_of_option(option)
                if more is None:
                    break
                found |= more
            else:
                self._sources[id(node)] = frozenset(found)
        return self._sources[id(node)]

    def _sources_of_option(self, option: Name | Constant | Call) -> frozenset[str] | None:
        if isinstance(option, Call):
            return option.types
        if isinstance(option, Constant):
            return _FILLED
        statement = self.template.statements.get(option.name)
        sources = None if statement is None else self._sources_of(statement.body)
        if statement is not None and statement.binds and sources is not None and sources & TRANSPARENT:
            return None  # a second mention may read what lies above the transparent operator
        return sources

    def _args(
        self,
        args: tuple[Alternatives, ...],
        values: tuple[int | None, ...],
        state: _State,
        line: str,
        depth: int,
    ) -> Iterator[_State]:
        if not args:
            yield state
            return
        value = values[0]
        if value is None:
            if any(isinstance(o, Name) and o.name == "_" for o in args[0].options):
                yield from self._args(args[1:], values[1:], state, line, depth)
            return
        for matched in self._alternatives(args[0], value, state, line, depth):
            yield from self._args(args[1:], values[1:], matched, line, depth)


def _compare(found: object, how: str, expected: float | str) -> bool:
    if how == "=" or not isinstance(found, int | float) or isinstance(expected, str):
        return how == "=" and found == expected
    return {
        "<": found < expected,
        "<=": found <= expected,
        ">": found > expected,
        ">=": found >= expected,
    }[how]


def match_template(
    index: GraphIndex, template: Template, skip: frozenset[int] = frozenset()
) -> Iterator[TemplateMatch]:
    """Find every occurrence of a template.

    Args:
        index: the model.
        template: the idiom.
        skip: operators that must not be a root (another pattern has them).

    Yields:
        At most one match per root operator, in file order of the roots.
    """
    matcher = _Matcher(index, template)
    roots = sorted(op.id for key in template.anchors for op in index.by_type.get(key, ()))
    for root in roots:
        if root not in skip:
            match = matcher.match_root(index.graph.ops[root])
            if match is not None:
                yield match
