"""What the program says of itself, as text: `--help` and `--version` are answered without a parser.

Loading click alone takes longer than three bare interpreters; this module loads nothing. The text is laid out
here, once, for 80 columns; the command `program` prints the same.
"""

from __future__ import annotations

import fp16conv

__all__ = ["VERBS", "answer", "overview", "version"]

VERBS = {
    "analyze": "Audit a model: what can run in FP16, what not, and why.",
    "plan": "Write the decisions and their reasons to a file.",
    "convert": "Convert a model: plan, convert, verify, validate, save.",
    "tune": "Find the fastest plan that meets an accuracy target.",
    "export": "Export a PyTorch program to ONNX and audit the result.",
    "train-audit": "Audit training in FP16: gradients, loss scale, master weights.",
    "validate": "Compare a converted model with its FP32 original.",
    "explain": "Say why an operator has its precision, what would change it.",
    "diff": "Compare two plans or two models: precision and casts.",
    "audit": "Analyze every model of a folder or list, one process each.",
    "rules": "List, explain and check the rules behind the decisions.",
    "doctor": "Show what this machine can run and whether it works.",
}
"""Each verb is the attribute `command` of the module fp16conv.cli.VERB, imported when it is called."""

_TEXT = """\
Usage: fp16conv [OPTIONS] COMMAND [ARGS]...

  Convert trained FP32 models to FP16 and prove the result.

  Examples:
    fp16conv analyze model.onnx
    fp16conv analyze model.onnx --data batches/ --format json
    fp16conv convert model.onnx -o model.fp16.onnx --data batches/
    fp16conv tune model.onnx -o model.fp16.onnx --data batches/ --tolerance 0.01
    fp16conv validate model.onnx model.fp16.onnx --data batches/
    fp16conv rules explain exp-overflow

  Known limitations:
    - Without a CUDA device FP16 is emulated: every FP16 tensor is rounded, sums
      inside one operator stay FP32, as Tensor Cores accumulate. Speed is never
      measured, only predicted.
    - Without --data the inputs are made up, and reports say so.
    - ONNX models, and PyTorch programs with the extra fp16conv[torch].
    - Quantized operators and unknown domains stay as they are.

  Exit codes: 0 fine, 1 findings or tolerance missed, 2 usage, rules or plan
  error, 3 model unreadable or unsupported, 4 conversion or machine failed
  (nothing half-written left), 5 validation could not run, 70 bug in fp16conv,
  130 interrupted, 141 the reader of the output closed the pipe.

Options:
  --version   Show the version and exit.
  -h, --help  Show this message and exit.

Commands:
"""


def overview() -> str:
    """The help of the program: what it does, its options, its verbs.

    Example:
        >>> overview().splitlines()[-1]
        '  doctor       Show what this machine can run and whether it works.'
    """
    width = max(map(len, VERBS)) + 2
    return _TEXT + "".join(f"  {verb.ljust(width)}{does}\n" for verb, does in VERBS.items())


def version() -> str:
    """The line that `--version` prints."""
    return f"fp16conv {fp16conv.__version__}\n"


def answer(args: list[str]) -> str | None:
    """What to print for a command line that asks for nothing but help or the version; None for any other.

    Example:
        >>> answer(["--version"]) == version(), answer(["rules", "--help"])
        (True, None)
    """
    if len(args) != 1:
        return None
    return overview() if args[0] in ("-h", "--help") else version() if args[0] == "--version" else None
