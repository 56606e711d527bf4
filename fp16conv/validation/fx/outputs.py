"""Runs PyTorch programs for their outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fp16conv.errors import Fp16convError, ValidationError, first_line
from fp16conv.execution.fx import ProgramRunner, Roundings
from fp16conv.frontends.fx.program import LoadedProgram

__all__ = ["ProgramOutputs"]


class ProgramOutputs:
    """Runs a program for its outputs, by name.

    Args:
        loaded: the program.
        device: `cpu` or `cuda`.
    """

    def __init__(self, loaded: LoadedProgram, device: str) -> None:
        self._loaded = loaded
        self._runner = ProgramRunner(loaded.program, device=device, where=loaded.source)
        self.without_kernel: dict[str, None] = {}

    def run(self, batch: Mapping[str, Any], rounded: Roundings | None = None) -> dict[str, npt.NDArray[Any]]:
        """The outputs of a batch.

        Args:
            batch: arrays by input name.
            rounded: what is rounded to FP16 on the way.

        Raises:
            ValidationError: an input is missing, or a call fails.
        """
        try:
            run = self._runner.run(batch, rounded=rounded)
        except Fp16convError:
            raise
        except Exception as error:  # the program's own calls
            raise ValidationError("does not run", where=self._loaded.source, why=first_line(error)) from error
        self.without_kernel.update(run.without_kernel)
        names = self._loaded.output_names
        return {name: np.asarray(run.outputs[position]) for position, name in names.items()}
