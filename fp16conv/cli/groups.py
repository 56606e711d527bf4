"""Command groups that suggest the right spelling."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import click

__all__ = ["SuggestingGroup", "join", "suggest"]


def suggest(word: str, known: Iterable[str]) -> str:
    """A hint that names the closest known words, or all of them if they are few.

    Example:
        >>> suggest("balansed", ["balanced", "fast"])
        "did you mean 'balanced'?"
    """
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=2, cutoff=0.6)
    if close:
        return "did you mean " + " or ".join(f"'{name}'" for name in close) + "?"
    return f"known: {', '.join(names)}." if len(names) <= 12 else ""


def join(what: str, hint: str) -> str:
    """One sentence of what is wrong and a hint, if there is one."""
    return f"{what}: {hint}" if hint else f"{what}."


class SuggestingGroup(click.Group):
    """A group whose unknown commands come with a suggestion."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            hint = suggest(name, self.list_commands(ctx))
            raise click.UsageError(join(f"No such command {name!r}", hint), ctx)
        return super().resolve_command(ctx, args)
