"""Types of flag values: each turns text into what the API takes, or says what is wrong with it."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from fp16conv._data import rules_dir
from fp16conv.cli.groups import join, suggest

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # not generic in the oldest click we support

__all__ = ["BYTES", "RANGE", "SHAPE", "Choice", "RuleName", "Tolerance", "as_mapping"]


class Choice(_ParamType):
    """One of a few words, with a suggestion for the others."""

    name = "choice"

    def __init__(self, *names: str) -> None:
        self.names = names

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "|".join(self.names)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(name) for name in self.names if name.startswith(incomplete)]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value not in self.names:
            self.fail(join(f"unknown value {value!r}", suggest(value, self.names)), param, ctx)
        return value


class RuleName(_ParamType):
    """The name of a file of the rule book: a profile, target or device."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.name = kind.removesuffix("s")

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return self.name.upper()

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(name) for name in self.known() if name.startswith(incomplete)]

    def known(self) -> list[str]:
        """Ids in rules/KIND/*.toml, sorted; a file's name stands in where it holds no id."""
        names = []
        for path in sorted((rules_dir() / self.kind).glob("*.toml")):
            with path.open("rb") as file:
                names.append(str(tomllib.load(file).get("id", path.stem)))
        return names

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        known = self.known()
        is_file = self.kind == "devices" and str(value).endswith(".toml")
        if not is_file and value not in known:
            self.fail(join(f"unknown {self.name} {value!r}", suggest(value, known)), param, ctx)
        return value


class _Shape(_ParamType):
    name = "NAME=1x3x224x224"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return self.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        name, _, text = str(value).rpartition("=")
        scalar = bool(name) and not text
        if not name or not (scalar or re.fullmatch(r"\d+(x\d+)*", text)):
            self.fail(f"{value!r} is not NAME=SHAPE, e.g. image=1x3x224x224", param, ctx)
        return name, () if scalar else tuple(int(dim) for dim in text.split("x"))


class _Range(_ParamType):
    name = "NAME=LO:HI"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return self.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        name, _, text = str(value).rpartition("=")
        try:
            low, high = (float(part) for part in text.split(":"))
        except ValueError:
            low = high = math.nan
        if not name or not (math.isfinite(low) and math.isfinite(high)):
            self.fail(f"{value!r} is not NAME=LO:HI with two numbers, e.g. image=0:1", param, ctx)
        if low > high:
            self.fail(f"{value!r}: {low:g} is above {high:g}", param, ctx)
        return name, (low, high)


class _Bytes(_ParamType):
    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)B?", value)
        if not match or float(match[1]) <= 0:
            self.fail(f"{value!r} is not a size, e.g. 512MB or 2GiB", param, ctx)
        power = " kMGT".index(match[2].replace("K", "k") or " ")
        return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


class Tolerance(_ParamType):
    """A finite number that is not negative."""

    name = "NUMBER"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not (math.isfinite(number) and number >= 0):
            self.fail(f"{value!r} is not a number from 0 on", param, ctx)
        return number


SHAPE = _Shape()
RANGE = _Range()
BYTES = _Bytes()


def as_mapping(flag: str, pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Collect NAME=... pairs; a name given twice is an error."""
    result: dict[str, Any] = {}
    for name, value in pairs:
        if name in result:
            raise click.UsageError(f"{flag} is given twice for {name!r}.")
        result[name] = value
    return result
