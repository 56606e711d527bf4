"""What a runtime did wrong: a finding about that runtime, not an error of ours or of the model's."""

from __future__ import annotations

import signal as signals
from typing import Literal

import onnx_ir as ir

from fp16conv.errors import ValidationError
from fp16conv.frontends.sparse import stray_weights

__all__ = ["RuntimeFailure", "Stage", "clone_to_run"]

Stage = Literal["start", "load", "run"]


class RuntimeFailure(ValidationError):  # noqa: N818 - a finding, not an error of ours
    """A runtime could not load or run a model, or took its process down.

    Args:
        stage: `start` (the runtime itself did not come up), `load` or `run`.
        runtime: name of the runtime, e.g. `ONNX Runtime`.
        version: its version, empty when unknown.
        message: what it said.
        signal: number of the signal that ended the process, None where it survived.
        timed_out: whether it was stopped because it took too long.

    Example:
        >>> str(RuntimeFailure("load", "ONNX Runtime", "1.31.1", "", signal=11))
        'ONNX Runtime 1.31.1 crashed (SIGSEGV) while loading the model'
    """

    def __init__(
        self,
        stage: Stage,
        runtime: str,
        version: str,
        message: str,
        *,
        signal: int | None = None,
        timed_out: bool = False,
        where: str = "",
        hint: str = "",
    ) -> None:
        self.stage, self.runtime, self.version = stage, runtime, version
        self.message, self.signal, self.timed_out = message, signal, timed_out
        doing = {"start": "starting", "load": "loading the model", "run": "running the model"}[stage]
        name = f"{runtime} {version}".strip()
        if timed_out:
            what = f"{name} took too long while {doing}"
        elif signal is not None:
            what = f"{name} crashed ({_signal_name(signal)}) while {doing}"
        else:
            what = f"{name} failed while {doing}"
        super().__init__(what, where=where, why=message, hint=hint)

    @property
    def crashed(self) -> bool:
        """Whether the runtime took its process down."""
        return self.signal is not None and not self.timed_out


def _signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"exit status {number}"


def clone_to_run(model: ir.Model) -> ir.Model:
    """A copy that is changed so that it can be run; its sparse weights are dense, as runtimes have them.

    Raises:
        RuntimeFailure: it has sparse initializers that have no dense form, or that several graphs read.
    """
    weights = stray_weights(model)
    model.graph.initializers.update(weights)
    try:
        return model.clone()
    except RuntimeError:
        raise RuntimeFailure(
            "load",
            "onnx_ir",
            ir.__version__,
            "it reads sparse initializers that are not sound, too large as dense tensors, or in subgraphs",
            hint="convert it with --no-validate, or store them as dense tensors",
        ) from None
    finally:
        for name in weights:
            del model.graph.initializers[name]
