"""Where a report goes: the form on stdout, files beside it, and which findings fail the command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fp16conv.cli.environment import Environment, Level
from fp16conv.cli.options import refuse_overwrite
from fp16conv.cli.params import Choice
from fp16conv.cli.terminal import print_report
from fp16conv.errors import UsageError, unwritable
from fp16conv.files import write_whole

if TYPE_CHECKING:
    from fp16conv.reporting.report import Report

__all__ = ["DETAILED", "FORMS", "SUFFIXES", "Delivery", "report_flags"]

F = TypeVar("F", bound=Callable[..., Any])

FORMS = ("text", "json", "html", "markdown", "sarif", "junit", "model-explorer")
SUFFIXES = {
    ".txt": "text",
    ".json": "json",
    ".html": "html",
    ".md": "markdown",
    ".sarif": "sarif",
    ".xml": "junit",
}
"""Which form a file's ending asks for."""

DETAILED = frozenset({"html", "sarif", "model-explorer"})
"""Forms that list every operator."""


def report_flags(function: F) -> F:
    """Add --format, --report and --fail-on; the command hands the flags to `Delivery.take`."""
    for decorate in reversed(
        [
            click.option(
                "--format",
                "form",
                type=Choice(*FORMS),
                default="text",
                show_default=True,
                help="Form of the report on stdout.",
            ),
            click.option(
                "--report",
                multiple=True,
                metavar="FILE",
                help="Also write the report here; .html, .json, .md, .sarif, .xml (JUnit) or .txt says the "
                "form. Repeatable.",
            ),
            click.option(
                "--fail-on",
                type=Choice("error", "warning", "never"),
                default="error",
                show_default=True,
                help="Which findings make the exit code 1.",
            ),
        ]
    ):
        function = decorate(function)
    return function


class Delivery:
    """Prints a report, writes its files, and says the exit code.

    Args:
        form: of the report on stdout.
        files: more copies, their endings say the form.
        fail_on: `error`, `warning` or `never`.
    """

    def __init__(self, form: str, files: tuple[str, ...], fail_on: str) -> None:
        self._form, self._files, self._fail_on = form, files, fail_on

    @classmethod
    def take(cls, flags: dict[str, Any], inputs: Mapping[str, object]) -> Delivery:
        """Take the flags of `report_flags` out of `flags`.

        Args:
            flags: values of all flags; changed.
            inputs: files that the run reads or writes, a string or a tuple of them per name.

        Raises:
            UsageError: an ending is unknown, or a report would overwrite an input.
        """
        delivery = cls(flags.pop("form"), flags.pop("report"), flags.pop("fail_on"))
        busy = [p for paths in inputs.values() for p in ([paths] if isinstance(paths, str) else paths or [])]  # type: ignore[attr-defined]
        for file in delivery._files:
            _form_of(file)
            refuse_overwrite(file, busy)
            if not Path(file).absolute().parent.is_dir():
                raise UsageError("the folder of the report does not exist", where=file)
        return delivery

    def details(self, env: Environment) -> dict[str, bool]:
        """The API's keyword argument, empty where no form lists operators; JSON does with --verbose."""
        forms = {self._form, *map(_form_of, self._files)}
        wanted = forms & DETAILED or (env.level is Level.VERBOSE and "json" in forms)
        return {"details": True} if wanted else {}

    def send(self, report: Report, env: Environment) -> None:
        """Write the files, then print to stdout."""
        if self._files:
            from fp16conv.reporting.renderers import RENDERERS

            for file in self._files:
                _write(file, RENDERERS[_form_of(file)](report))
        print_report(report, self._form, env)

    def exit_code(self, report: Report) -> int:
        """0 or 1. A file that was asked for and not written fails in any case."""
        from fp16conv.reporting.report import ConvertReport, Severity

        if isinstance(report, ConvertReport) and report.output is None and getattr(report, "wanted", True):
            return 1
        if self._fail_on == "never":
            return 0
        warned = any(finding.severity is Severity.WARNING for finding in report.findings)
        return 1 if not report.ok or (warned and self._fail_on == "warning") else 0


def _form_of(file: str) -> str:
    form = SUFFIXES.get(Path(file).suffix.lower())
    if form is None:
        raise UsageError(
            "the ending of a report's file says its form, and this one says none",
            where=file,
            hint=f"use one of {', '.join(SUFFIXES)}",
        )
    return form


def _write(path: str, text: str) -> None:
    """The file appears complete or not at all."""
    try:
        write_whole(path, text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise unwritable("the report cannot be written", path, error) from error
