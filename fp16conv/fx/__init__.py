"""The verbs for PyTorch: audit, plan, convert, tune and explain a module, an ExportedProgram or a .pt2 file.

Needs torch (`pip install 'fp16conv[torch]'`). The functions of `fp16conv.api` come here by themselves for
PyTorch sources; `convert_module` is the way for models in memory.
"""

from fp16conv.fx.study import ProgramStudy, load, open_feeds, start_study
from fp16conv.fx.verbs import (
    Conversion,
    analyze,
    convert,
    convert_module,
    diff,
    explain,
    export,
    plan,
    tune,
    validate,
)

__all__ = [
    "Conversion",
    "ProgramStudy",
    "analyze",
    "convert",
    "convert_module",
    "diff",
    "explain",
    "export",
    "load",
    "open_feeds",
    "plan",
    "start_study",
    "tune",
    "validate",
]
