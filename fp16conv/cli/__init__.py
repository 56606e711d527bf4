"""The command line: the only place that prints or exits."""

from fp16conv.cli.app import main, run

__all__ = ["main", "run"]
