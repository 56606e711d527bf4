"""The language of pattern rules: templates (SSA-like text) and operator specifications of walks.

A template is a list of statements, one per line (a line that starts with `|` continues the last one):

    name = alternative | alternative     one value; every mention of the name means that value
    name := alternative | alternative    a production: every mention may be another value

The last statement is the root: matching starts at an operator of its types and goes up. An alternative is
a call `Op(args)` or `OpA/OpB[attr=1, other<2](args)`, a name, `_` (anything), or a constant
`{conditions}`, which `name{conditions}` captures. A name without a statement is free: any value, the same
one at every mention. Add, Mul, Min, Max and Equal match with their operands in either order; trailing
inputs may be left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from fp16conv.errors import RuleError
from fp16conv.graph import DataType
from fp16conv.rulebook.op_sets import OP_SETS

__all__ = [
    "Alternatives",
    "Call",
    "Condition",
    "Constant",
    "Name",
    "Numbers",
    "OpSpec",
    "Statement",
    "Template",
    "parse_condition",
    "parse_specs",
    "parse_template",
]


@dataclass(frozen=True, slots=True)
class Numbers:
    """What the conditions need of a constant: its size and extremes (NaN left out)."""

    size: int
    lo: float
    hi: float
    smallest_nonzero: float  # magnitude; infinite when all are zero
    lo_nonzero: float
    hi_nonzero: float


@dataclass(frozen=True, slots=True)
class Condition:
    """A conjunction of terms over a constant's numbers; without terms every constant fits.

    Terms: a number (all elements equal it, relative 1e-3), `<n` `<=n` `>n` `>=n` (every element),
    `nonzero<=n` (every non-zero element, and there is one), `peak>=n` (the largest magnitude),
    `scalar`, `vector`, `finite`, `uniform` (all elements equal and not zero: a mean as a matrix product).
    """

    terms: tuple[tuple[str, str, float], ...] = ()

    def holds(self, numbers: Numbers) -> bool:
        return all(_holds(term, numbers) for term in self.terms)


def _holds(term: tuple[str, str, float], n: Numbers) -> bool:
    subject, operator, bound = term
    peak = max(abs(n.lo), abs(n.hi))
    if subject == "scalar":
        return n.size == 1
    if subject == "vector":
        return n.size > 1
    if subject == "finite":
        return math.isfinite(peak)
    if subject == "uniform":
        return peak > 0 and n.hi - n.lo <= 1e-3 * peak
    if subject == "equals":
        tolerance = 1e-3 * abs(bound)
        return abs(n.lo - bound) <= tolerance and abs(n.hi - bound) <= tolerance
    if subject == "peak":
        lo = hi = peak
    elif subject == "nonzero":
        if math.isinf(n.smallest_nonzero) and n.lo == n.hi == 0:
            return False
        lo, hi = n.lo_nonzero, n.hi_nonzero
    else:
        lo, hi = n.lo, n.hi
    if n.size == 0:
        return False
    return {"<": hi < bound, "<=": hi <= bound, ">": lo > bound, ">=": lo >= bound}[operator]


@dataclass(frozen=True, slots=True)
class Name:
    """A mention of a statement or of a free value; `_` matches anything."""

    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant that fulfils the condition; captured under `name` unless it is empty."""

    condition: Condition
    name: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """An operator of one of `types` (keys as in `Op.key`) with these attributes and arguments."""

    types: frozenset[str]
    args: tuple[Alternatives, ...]
    attrs: tuple[tuple[str, str, float | str], ...] = ()  # name, comparison, value


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Any of several ways to make a value, tried in order."""

    options: tuple[Name | Constant | Call, ...]


@dataclass(frozen=True, slots=True)
class Statement:
    """`name = ...` (binds) or `name := ...` (a production)."""

    name: str
    binds: bool
    body: Alternatives


@dataclass(frozen=True)
class Template:
    """Statements by name, the root last."""

    statements: dict[str, Statement]
    root: Statement

    @property
    def anchors(self) -> frozenset[str]:
        """Operator types where a match can start."""
        return frozenset(t for o in self.root.body.options if isinstance(o, Call) for t in o.types)

    @property
    def captures(self) -> frozenset[str]:
        """Names of captured constants."""
        return frozenset(
            node.name
            for statement in self.statements.values()
            for node in _walk(statement.body)
            if isinstance(node, Constant) and node.name
        )


def _walk(node: Alternatives) -> Iterator[Name | Constant | Call]:
    for option in node.options:
        yield option
        if isinstance(option, Call):
            for arg in option.args:
                yield from _walk(arg)


_NUMBER = r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|inf)"
_TOKEN = re.compile(
    rf"\s*(?:(?P<number>{_NUMBER}(?![\w.]))|(?P<name>[A-Za-z_][\w.]*(?:::[A-Za-z_]\w*)?)"
    r"|(?P<symbol>:=|<=|>=|[=|(){}\[\],/<>]))"
)


class _Reader:
    """Token stream with one token of look-ahead."""

    def __init__(self, text: str, where: str) -> None:
        self.where, self.text = where, text
        self.tokens: list[tuple[str, str]] = []
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                if not text[position:].strip():
                    break
                raise RuleError(f"cannot read '{text[position:].strip()[:20]}'", where=where)
            self.tokens.append((str(match.lastgroup), match.group(str(match.lastgroup))))
            position = match.end()
        self.at = 0

    def peek(self, offset: int = 0) -> tuple[str, str]:
        index = self.at + offset
        return self.tokens[index] if index < len(self.tokens) else ("end", "")

    def take(self, expected: str = "") -> str:
        _, text = self.peek()
        if (expected and text != expected) or self.at >= len(self.tokens):
            raise RuleError(
                f"expected '{expected or 'more'}' but found '{text or 'the end'}'",
                where=self.where,
                why=f"in '{self.text.strip()}'",
            )
        self.at += 1
        return text

    def accept(self, text: str) -> bool:
        if self.peek()[1] == text and self.peek()[0] == "symbol":
            self.at += 1
            return True
        return False


def _alternatives(reader: _Reader) -> Alternatives:
    options = [_alternative(reader)]
    while reader.accept("|"):
        options.append(_alternative(reader))
    return Alternatives(tuple(options))


def _alternative(reader: _Reader) -> Name | Constant | Call:
    kind, text = reader.peek()
    if text == "{":
        return Constant(_condition(reader))
    if kind != "name":
        raise RuleError(f"expected an operator, a name or a constant, not '{text}'", where=reader.where)
    reader.take()
    following = reader.peek()[1]
    if following == "{":
        return Constant(_condition(reader), text)
    if following not in ("(", "/", "["):
        return Name(text)
    types = [text]
    while reader.accept("/"):
        types.append(reader.take())
    attrs: list[tuple[str, str, float | str]] = []
    if reader.accept("["):
        while not reader.accept("]"):
            key, comparison = reader.take(), reader.take()
            token, value = reader.peek()
            reader.take()
            if comparison not in ("=", "<", "<=", ">", ">=") or (comparison != "=" and token != "number"):
                raise RuleError(f"'{key}{comparison}{value}' is not a condition", where=reader.where)
            attrs.append((key, comparison, float(value) if token == "number" else value))
            reader.accept(",")
    reader.take("(")
    args: list[Alternatives] = []
    while not reader.accept(")"):
        args.append(_alternatives(reader))
        if not reader.accept(","):
            reader.take(")")
            break
    return Call(frozenset(types), tuple(args), tuple(attrs))


def _condition(reader: _Reader) -> Condition:
    reader.take("{")
    terms: list[tuple[str, str, float]] = []
    while not reader.accept("}"):
        kind, text = reader.peek()
        if kind == "number":
            terms.append(("equals", "=", float(reader.take())))
        elif text in ("scalar", "vector", "finite", "uniform"):
            terms.append((reader.take(), "", 0.0))
        else:
            subject = reader.take() if text in ("peak", "nonzero") else "each"
            operator = reader.take()
            if operator not in ("<", "<=", ">", ">=") or reader.peek()[0] != "number":
                raise RuleError(f"'{subject}{operator}' is not a condition", where=reader.where)
            terms.append((subject, operator, float(reader.take())))
        if not reader.accept(","):
            reader.take("}")
            break
    return Condition(tuple(terms))


def parse_condition(text: str, where: str) -> Condition:
    """Read `{...}`.

    Raises:
        RuleError: the text is not a condition.
    """
    reader = _Reader(text, where)
    condition = _condition(reader)
    if reader.peek()[0] != "end":
        raise RuleError(f"'{reader.peek()[1]}' is left over after a condition", where=where)
    return condition


def parse_template(text: str, where: str) -> Template:
    """Read a template.

    Args:
        text: the statements, see the module's head.
        where: file and rule, for messages.

    Raises:
        RuleError: the text is malformed, a statement is defined twice or is never reached from the root.

    Example:
        >>> sorted(parse_template("y = Div(x, e)", "demo").anchors)
        ['Div']
    """
    lines: list[str] = []
    for raw in re.split(r"[\n;]", text):
        line = raw.split("#")[0].strip()
        if line.startswith("|") and lines:
            lines[-1] += f" {line}"
        elif line:
            lines.append(line)
    statements: dict[str, Statement] = {}
    for line in lines:
        reader = _Reader(line, where)
        name = reader.take()
        binds = reader.peek()[1] != ":="
        reader.take("=" if binds else ":=")
        body = _alternatives(reader)
        if reader.peek()[0] != "end":
            raise RuleError(f"'{reader.peek()[1]}' is left over after '{line}'", where=where)
        if name in statements:
            raise RuleError(f"'{name}' is defined twice", where=where)
        statements[name] = Statement(name, binds, body)
    if not statements:
        raise RuleError("a template without statements", where=where)
    root = statements[next(reversed(statements))]
    if not all(isinstance(option, Call) for option in root.body.options):
        raise RuleError(f"the last statement '{root.name}' must be made of calls", where=where)
    reached = {root.name}
    queue = [root.name]
    while queue:
        for node in _walk(statements[queue.pop()].body):
            if isinstance(node, Name) and node.name in statements and node.name not in reached:
                reached.add(node.name)
                queue.append(node.name)
    unused = [name for name in statements if name not in reached]
    if unused:
        raise RuleError(f"statement '{unused[0]}' is never used", where=where)
    return Template(statements, root)


@dataclass(frozen=True, slots=True)
class OpSpec:
    """Which operators (and which of their slots) a walk means.

    Args:
        type: operator key, or `@output` for outputs of the main graph.
        slot: input slot, -1 for all of them, None where no slot is named.
        source: kind of the first input ("float", "int" of two bytes or more, or a data type), empty for any.
        target: kind of the first output, empty for any.
        inner: largest contraction length of a matrix product, 0 for any.
        constant: an input must be a constant that fulfils this.
        own: the slot has a type variable of its own: its type can differ from that of the rest.
        movement: the operator only moves data.
    """

    type: str
    slot: int | None = None
    source: str = ""
    target: str = ""
    inner: int = 0
    constant: Condition | None = None
    own: bool = False
    movement: bool = False


_SPEC = re.compile(
    r"^(?P<type>@?[A-Za-z_][\w.]*(?:::\w+)?)(?::(?P<slot>\d+|\*)(?P<own>\s+own)?)?"
    r"(?:\s+(?P<source>\w+)->(?P<target>\w+))?(?:\s+inner<=(?P<inner>\d+))?(?:\s+const(?P<constant>\{[^}]*\}))?$"
)


def parse_specs(texts: tuple[str, ...], where: str) -> tuple[OpSpec, ...]:
    """Read specifications: `Sin:0`, `Cast int->float`, `MatMul inner<=4`, `Add const{peak>=16}`, `@movement`.

    A name with `@` is a set from `op_sets` and stands for all its members. `Attention:3 own` is the slot
    where its type variable covers nothing else.

    Raises:
        RuleError: a text is malformed or names an unknown set.
    """
    specs: list[OpSpec] = []
    for text in texts:
        match = _SPEC.match(text.strip())
        if match is None:
            raise RuleError(f"'{text}' is not an operator specification", where=where)
        kind = match["type"]
        if kind.startswith("@") and kind != "@output":
            if kind[1:] not in OP_SETS:
                raise RuleError(
                    f"unknown operator set '{kind}'", where=where, hint=f"known: {', '.join(sorted(OP_SETS))}"
                )
            for member in OP_SETS[kind[1:]]:
                is_cast = member == "Cast" and kind == "@movement"
                kinds = ("float", "float") if is_cast else ("", "")
                specs.append(OpSpec(member, None, *kinds, movement=kind == "@movement"))
            continue
        for group in ("source", "target"):
            if match[group] not in (None, "float", "int", *DataType):
                raise RuleError(
                    f"'{match[group]}' is not a kind of number (float, int, or a data type)", where=where
                )
        slot = match["slot"]
        specs.append(
            OpSpec(
                kind,
                None if slot is None else -1 if slot == "*" else int(slot),
                match["source"] or "",
                match["target"] or "",
                int(match["inner"] or 0),
                parse_condition(match["constant"], where) if match["constant"] else None,
                match["own"] is not None,
            )
        )
    return tuple(specs)
