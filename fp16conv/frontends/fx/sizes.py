"""Symbolic sizes as text: sympy reads them by evaluating them, so they must be arithmetic and small."""

from __future__ import annotations

import ast
import re
from typing import Final

__all__ = ["is_arithmetic"]

MAX_TEXT: Final = 20_000  # characters
MAX_DEPTH: Final = 50
MAX_NUMBER: Final = 2**64
MAX_EXPONENT: Final = 64  # of all powers in each other together, and of shifts

_FUNCTIONS: Final = frozenset(
    {
        "Symbol",
        "Integer",
        "Float",
        "Rational",
        "Add",
        "Mul",
        "Max",
        "Min",
        "Mod",
        "PythonMod",
        "FloorDiv",
        "CleanDiv",
    }
    | {"CeilDiv", "CeilToInt", "FloorToInt", "TruncToInt", "RoundToInt", "ToFloat", "IntTrueDiv", "Abs"}
    | {"FloatTrueDiv", "ModularIndexing", "Where", "Piecewise", "Eq", "Ne", "Lt", "Le", "Gt", "Ge", "Pow"}
    | {
        "Equality",
        "Unequality",
        "StrictLessThan",
        "StrictGreaterThan",
        "LessThan",
        "GreaterThan",
        "And",
        "Or",
    }
    | {"PowByNatural", "FloatPow", "Identity", "BitwiseFn_bitwise_and", "BitwiseFn_bitwise_or", "Not"}
    | {"OpaqueUnaryFn_sqrt", "TruncToFloat", "RoundDecimal", "floor", "ceiling", "LShift", "RShift"}
)
_POWERS: Final = frozenset({"Pow", "PowByNatural", "FloatPow", "LShift", "RShift"})
_OPERATORS: Final = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)


def is_arithmetic(text: str) -> bool:
    """Whether evaluating a text does nothing but arithmetic, in little time.

    Example:
        >>> is_arithmetic("Mul(Integer(2), Symbol('s0', integer=True))"), is_arithmetic("2*s0 + 1")
        (True, True)
        >>> is_arithmetic("__import__('os')"), is_arithmetic("s0.func"), is_arithmetic("9**9**9**9")
        (False, False, False)
    """
    if len(text) > MAX_TEXT:
        return False
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return _is_term(tree, MAX_DEPTH, MAX_EXPONENT)


def _is_term(node: ast.expr, depth: int, power: int) -> bool:
    """Whether a term is harmless; `power` is what is left for exponents inside."""
    if depth == 0 or power < 1:
        return False
    if isinstance(node, ast.Name):
        return "__" not in node.id
    if isinstance(node, ast.Constant):
        return not isinstance(node.value, str) and _is_plain(node.value)
    if isinstance(node, ast.Call):
        return _is_call(node, depth, power)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return _is_power([node.left, node.right], depth, power)
    parts: list[ast.expr] = []
    if isinstance(node, ast.UnaryOp):
        parts = [node.operand]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, _OPERATORS):
        parts = [node.left, node.right]
    elif isinstance(node, ast.Compare):
        parts = [node.left, *node.comparators]
    elif isinstance(node, ast.BoolOp):
        parts = node.values
    elif isinstance(node, ast.Tuple):
        parts = node.elts
    return bool(parts) and all(_is_term(part, depth - 1, power) for part in parts)


def _is_call(node: ast.Call, depth: int, power: int) -> bool:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name in ("Symbol", "Float"):  # texts and flags: a name, digits, what is assumed
        given = (*node.args, *(k.value for k in node.keywords))
        return all(isinstance(a, ast.Constant) and _is_plain(a.value) for a in given)
    if name not in _FUNCTIONS or node.keywords:
        return False
    if name in _POWERS:
        return _is_power(node.args, depth, power)
    return all(_is_term(part, depth - 1, power) for part in node.args)


def _is_power(parts: list[ast.expr], depth: int, power: int) -> bool:
    """The exponent must be a small number: 9**9**9**9 is not computed before the heat death."""
    if len(parts) != 2:
        return False
    base, exponent = parts
    text = ast.unparse(exponent)
    found = re.fullmatch(r"(?:Integer\()?(-?\d{1,3})\)?|Rational\((-?\d{1,3}), \d{1,3}\)", text)
    size = abs(int(found[1] or found[2])) if found else 1
    if found is None and not (isinstance(exponent, ast.Call) and text.startswith("Symbol(")):
        return False
    return _is_term(base, depth - 1, power // max(size, 1))


def _is_plain(value: object) -> bool:
    if isinstance(value, str):
        return re.fullmatch(r"[A-Za-z_]\w{0,99}|[\d.eE+-]{1,50}", value) is not None and "__" not in value
    return isinstance(value, bool | float) or (isinstance(value, int) and abs(value) <= MAX_NUMBER)
