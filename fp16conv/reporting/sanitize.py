"""Make names from a model safe to print: they may hold control characters or direction overrides."""

from __future__ import annotations

import unicodedata

__all__ = ["clip", "display_width", "sanitize"]

_ELLIPSIS = "…"


def sanitize(text: str) -> str:
    r"""Show every character a terminal would act on as its escape sequence.

    Control (Cc: ESC, newline, C1 ...), format (Cf: direction overrides, zero-width ...), surrogate, private
    and unassigned characters and line separators are replaced; everything else stays.

    Example:
        >>> print(sanitize("a\x1b[31mred\u202e"))
        a\x1b[31mred\u202e
    """
    return "".join(_escape(c) if _acts(c) else c for c in text)


def _acts(char: str) -> bool:
    return char != " " and unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def display_width(text: str) -> int:
    r"""Columns a terminal needs for sanitised text (wide East Asian characters take two).

    Example:
        >>> display_width("ab"), display_width("\u6f22")
        (2, 2)
    """
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def clip(text: str, width: int, *, keep_end: bool = False) -> str:
    """Shorten sanitised text to `width` columns; operator names are told apart by their end.

    Example:
        >>> clip("/model/encoder/Softmax", 12, keep_end=True)
        '…der/Softmax'
    """
    if display_width(text) <= width:
        return text
    kept: list[str] = []
    room = width - 1
    for char in reversed(text) if keep_end else text:
        room -= display_width(char)
        if room < 0:
            break
        kept.append(char)
    return _ELLIPSIS + "".join(reversed(kept)) if keep_end else "".join(kept) + _ELLIPSIS
