"""Where the packaged rule data lies: `fp16conv/_rules` in a wheel, `rules/` in a checkout."""

from __future__ import annotations

from pathlib import Path

__all__ = ["rules_dir"]


def rules_dir() -> Path:
    """Return the folder that holds ops/, patterns/, aten/, targets/, devices/, profiles/ and schemas/.

    Example:
        >>> (rules_dir() / "ops").is_dir()
        True
    """
    package = Path(__file__).parent
    packaged = package / "_rules"
    return packaged if packaged.is_dir() else package.parent / "rules"
