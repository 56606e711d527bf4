"""Numbers as people read them."""

from __future__ import annotations

import math

__all__ = ["format_bytes", "format_count", "format_error", "format_seconds", "format_share", "plural"]


def format_bytes(nbytes: float) -> str:
    """Bytes with a decimal prefix.

    Example:
        >>> format_bytes(999), format_bytes(2_350_000)
        ('999 B', '2.35 MB')
    """
    return _prefix(nbytes, "B")


def format_count(count: float) -> str:
    """A large number with a decimal prefix.

    Example:
        >>> format_count(12_300_000), format_count(42)
        ('12.3 M', '42')
    """
    return _prefix(count, "")


def _prefix(number: float, unit: str) -> str:
    for prefix in ("", "k", "M", "G", "T"):
        if abs(number) < 999.5 or prefix == "T":
            digits = f"{number:.0f}" if not prefix else _significant(number)
            return f"{digits} {prefix}{unit}".rstrip()
        number /= 1000.0
    raise AssertionError("unreachable")


def _significant(number: float) -> str:
    return (
        f"{number:.2f}"
        if abs(number) < 9.995
        else f"{number:.1f}"
        if abs(number) < 99.95
        else f"{number:.0f}"
    )


def format_seconds(seconds: float) -> str:
    """A duration with a fitting unit.

    Example:
        >>> format_seconds(0.00123), format_seconds(75.0)
        ('1.23 ms', '75.0 s')
    """
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 0.9995 or unit == "us":
            return f"{_significant(seconds * factor)} {unit}"
    raise AssertionError("unreachable")


def format_share(share: float | None) -> str:
    """A share in per cent that never rounds to 0 or 100 unless it is.

    Example:
        >>> format_share(0.99999), format_share(1.0), format_share(1e-6), format_share(None)
        ('99.9 %', '100 %', '0.1 %', 'unknown')
    """
    if share is None:
        return "unknown"
    percent = share * 100.0
    if percent in (0.0, 100.0):
        return f"{percent:.0f} %"
    if 0.0 < percent < 100.0:
        percent = min(max(percent, 0.1), 99.9)
    return f"{percent:.1f} %"


def format_error(error: float | None) -> str:
    """An error with two significant digits.

    Example:
        >>> format_error(0.000123), format_error(float("inf")), format_error(0.0)
        ('1.2e-04', 'inf', '0')
    """
    if error is None:
        return "-"
    if error == 0.0:
        return "0"
    return f"{error:.1e}" if math.isfinite(error) else str(error)


def plural(count: int, noun: str) -> str:
    """Count and noun.

    Example:
        >>> plural(1, "cast"), plural(2, "cast"), plural(2, "batch")
        ('1 cast', '2 casts', '2 batches')
    """
    ending = "" if count == 1 else "es" if noun.endswith(("ch", "s", "x")) else "s"
    return f"{count} {noun}{ending}"
