"""Text as data: lines of styled spans. The command line colours them, everyone else joins them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from fp16conv.reporting.sanitize import display_width, sanitize

__all__ = ["Line", "Span", "Style", "heading", "line", "to_text", "wrap"]


class Style(StrEnum):
    """What a span means; how it looks is up to the printer."""

    PLAIN = ""
    HEADING = "heading"
    STRONG = "strong"
    GOOD = "good"
    BAD = "bad"
    WARN = "warn"
    DIM = "dim"
    COMMAND = "command"


@dataclass(frozen=True, slots=True)
class Span:
    """A run of sanitised text in one style."""

    text: str
    style: Style = Style.PLAIN


Line = tuple[Span, ...]


def line(*parts: str | tuple[str, Style]) -> Line:
    """Build a line; the text is sanitised here, so no renderer can forget it."""
    spans = []
    for part in parts:
        text, style = (part, Style.PLAIN) if isinstance(part, str) else part
        spans.append(Span(sanitize(text), style))
    return tuple(spans)


def heading(text: str) -> Line:
    """Build the line that opens a section."""
    return line((text, Style.HEADING))


def wrap(text: str, width: int, *, indent: str = "", limit: int | None = None) -> list[str]:
    """Break sanitised text at spaces into lines of at most `width` columns, indent included.

    Words longer than a line are cut. Beyond `limit` lines the rest is dropped; the last ends in an ellipsis.

    Example:
        >>> wrap("one two three four", 9, indent="  ", limit=2)
        ['  one two', '  three…']
    """
    room = max(width - len(indent), 8 if width < 8 else 1)
    lines: list[str] = [""]
    for word in sanitize(text.replace("\n", " ")).split():
        pieces = _cut(word, room)
        for piece in pieces:
            joined = f"{lines[-1]} {piece}" if lines[-1] else piece
            if display_width(joined) <= room:
                lines[-1] = joined
            else:
                lines.append(piece)
    if limit is not None and len(lines) > limit:
        last = lines[limit - 1]
        while display_width(last) > room - 1:
            last = last[:-1]
        lines = [*lines[: limit - 1], last.rstrip() + "…"]
    return [indent + text for text in lines]


def _cut(word: str, room: int) -> list[str]:
    pieces = [""]
    for char in word:
        if display_width(pieces[-1] + char) > room:
            pieces.append("")
        pieces[-1] += char
    return pieces


def to_text(lines: Sequence[Line]) -> str:
    """Join without styles, one trailing newline, no trailing spaces."""
    return "".join("".join(span.text for span in row).rstrip() + "\n" for row in lines)
