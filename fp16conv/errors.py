"""Exception tree of fp16conv; every class knows the process exit code it maps to.

Exit codes (also documented in docs/reference/exit-codes.md):
0 fine, 1 findings or tolerance missed, 2 usage/rules/plan error, 3 model unreadable or
unsupported, 4 conversion failed, 5 validation could not run, 70 internal error, 130 interrupted.
"""

from __future__ import annotations

import errno

__all__ = [
    "ConversionError",
    "DataError",
    "Fp16convError",
    "InternalError",
    "ModelError",
    "PlanError",
    "RuleError",
    "ToleranceError",
    "UsageError",
    "ValidationError",
    "first_line",
    "unwritable",
]

_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class Fp16convError(Exception):
    """Base of all errors that fp16conv raises on purpose.

    Args:
        what: what went wrong, one sentence.
        where: file, operator, value or flag concerned.
        why: the cause, if known.
        hint: what the user can do.

    Example:
        >>> str(UsageError("unknown profile 'fats'", hint="did you mean 'fast'?"))
        "unknown profile 'fats': did you mean 'fast'?"
    """

    exit_code = 70

    def __init__(self, what: str, *, where: str = "", why: str = "", hint: str = "") -> None:
        self.what, self.where, self.why, self.hint = what, where, why, hint
        message = f"{where}: {what}" if where else what
        for part in (why, hint):
            if part:
                message += f": {part}" if message[-1] not in ".?!" else f" {part}"
        super().__init__(message)


class ToleranceError(Fp16convError):
    """The converted model is not as close to the FP32 model as asked."""

    exit_code = 1


class UsageError(Fp16convError):
    """A flag, argument or name is wrong."""

    exit_code = 2


class RuleError(UsageError):
    """A rules file is malformed."""


class PlanError(UsageError):
    """A plan is malformed or does not belong to the model."""


class DataError(UsageError):
    """Feeds have wrong names, shapes or dtypes."""


class ModelError(Fp16convError):
    """The model cannot be read, is not valid, or holds something fp16conv refuses to lose."""

    exit_code = 3


class ConversionError(Fp16convError):
    """The conversion or its verification failed; no output was written."""

    exit_code = 4


class ValidationError(Fp16convError):
    """The validation could not run (not: it ran and failed)."""

    exit_code = 5


class InternalError(Fp16convError):
    """A broken invariant of fp16conv itself."""

    exit_code = 70


def first_line(error: BaseException, limit: int | None = 300) -> str:
    """The first line of an error's text that says something; the name of its class if none does.

    Args:
        error: any.
        limit: characters at most.

    Example:
        >>> first_line(ValueError("wrong size")), first_line(IndexError())
        ('wrong size', 'IndexError')
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:limit]


def unwritable(
    what: str, where: str, error: OSError, otherwise: type[Fp16convError] = UsageError
) -> Fp16convError:
    """The error of an output that could not be written: whether the machine failed, or the name was wrong.

    Args:
        what: as of the error.
        where: the file or folder.
        error: what the system said; a full disk and I/O errors are the machine's (exit code 4).
        otherwise: kind of the error where the place cannot be written at all.

    Example:
        >>> unwritable("cannot be written", "out", OSError(errno.ENOSPC, "No space left on device")).exit_code
        4
    """
    kind = ConversionError if error.errno in _MACHINE else otherwise
    return kind(what, where=where, why=error.strerror or str(error))
