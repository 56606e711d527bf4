"""Command groups that suggest the right spelling."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import click

__all__ = ["SuggestingGroup", "suggest"]


def suggest(word: str, known: Iterable[str]) -> str:
    """A sentence that names the closest known words, or all of them if they are few.

    Example:
        >>> suggest("balansed", ["balanced", "fast"])
        "Did you mean 'balanced'?"
    """
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=2, cutoff=0.6)
    if close:
        return "Did you mean " + " or ".join(f"'{name}'" for name in close) + "?"
    return f"Known: {', '.join(names)}." if len(names) <= 12 else ""


class SuggestingGroup(click.Group):
    """A group whose unknown commands come with a suggestion."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            hint = suggest(name, self.list_commands(ctx))
            raise click.UsageError(f"No such command {name!r}. {hint}".rstrip(), ctx)
        return super().resolve_command(ctx, args)
