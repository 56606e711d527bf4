"""A module that computes in FP16 by a plan while its parameters stay FP32 master weights."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import experimental
from torch.utils import _pytree as pytree

from fp16conv.conversion.fx import convert_program, verify_types
from fp16conv.errors import ModelError, UsageError
from fp16conv.evidence.constants import constant_facts
from fp16conv.evidence.fx import calibrate_program
from fp16conv.execution.feeds import FeedSource
from fp16conv.frontends.fx.program import LoadedProgram
from fp16conv.frontends.fx.sources import load_program
from fp16conv.planning.costs import estimate_costs
from fp16conv.planning.devices import load_device
from fp16conv.planning.plan import PrecisionPlan
from fp16conv.planning.planner import make_plan
from fp16conv.planning.serialize import bind_plan
from fp16conv.rulebook.book import load_book
from fp16conv.rulebook.judge import judge
from fp16conv.training.inputs import InputCheck, batch_shapes
from fp16conv.training.modes import modes_kept, require_fp32

__all__ = ["PreparedModule", "plan_training", "prepare"]


class PreparedModule(torch.nn.Module):
    """Runs a module's mixed-precision program; made by `prepare`.

    Parameters, buffers, submodules and their names are those of `module` itself (FP32): an optimizer or a
    checkpoint may be that of either. In training mode the program of training mode runs (dropout, batch
    statistics), in eval mode that of eval mode. Hooks on submodules do not run.

    Args:
        module: the FP32 module.
        programs: mixed program per mode, True for training.
        plans: the plan of each.
        checks: what each may be called with.
    """

    module: torch.nn.Module

    def __init__(
        self,
        module: torch.nn.Module,
        programs: Mapping[bool, ExportedProgram],
        plans: Mapping[bool, PrecisionPlan],
        checks: Mapping[bool, InputCheck],
    ) -> None:
        super().__init__()
        self.__dict__["module"] = module  # registered as a submodule it would prefix all names
        self._parameters, self._buffers = module._parameters, module._buffers
        self._modules = module._modules
        self.programs, self.plans = dict(programs), dict(plans)
        self.training = module.training
        self._checks = dict(checks)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program of the current mode; the structure of inputs and outputs is the module's."""
        program = self.programs[self.training]
        given = iter(self._checks[self.training].flatten(program, args, kwargs))
        mutated = {
            spec.target
            for spec in program.graph_signature.output_specs
            if spec.kind is OutputKind.BUFFER_MUTATION
        }
        values = []
        for spec in program.graph_signature.input_specs:
            if spec.kind is InputKind.USER_INPUT:
                values.append(next(given))
            elif spec.kind is InputKind.PARAMETER:
                values.append(self.module.get_parameter(spec.target))
            elif spec.kind is InputKind.BUFFER:
                buffer = self.module.get_buffer(spec.target)
                # Backward may need what the buffer held: the program gets a copy where it writes.
                values.append(buffer.clone() if spec.target in mutated else buffer)
            else:
                values.append(program.constants[spec.target])
        results = program.graph_module(*values)
        outputs = []
        for spec, result in zip(program.graph_signature.output_specs, results, strict=True):
            if spec.kind is OutputKind.BUFFER_MUTATION:
                with torch.no_grad():
                    self.module.get_buffer(spec.target).copy_(result)
            elif spec.kind is OutputKind.USER_OUTPUT:
                outputs.append(result)
        return pytree.tree_unflatten(outputs, program.call_spec.out_spec)

    def train(self, mode: bool = True) -> Self:
        """Switch the module, too, in its own way: it may keep parts frozen."""
        self.module.train(mode)
        self.training = mode
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load a checkpoint of the module."""
        return self.module.load_state_dict(*args, **kwargs)


def prepare(
    module: torch.nn.Module,
    plan: PrecisionPlan | None = None,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    profile: str = "balanced",
    target: str = "torch-cuda",
    device: str = "a10",
    keep_fp32: Sequence[str] = (),
    force_fp16: Sequence[str] = (),
) -> PreparedModule:
    """Make a module that trains in mixed precision.

    Its forward runs the FX plan on FP16 copies of the parameters, made anew in each step; gradients flow back
    into the FP32 parameters. Scale the loss with `torch.amp.GradScaler`, as with autocast.

    Args:
        module: FP32 module, on the device it trains on; parameters and buffers stay shared with it.
        plan: decisions for its training mode (`plan_training`); one is made by default.
        args: example inputs, on that device.
        kwargs: example inputs by name.
        dynamic_shapes: as `torch.export.export` takes them. By default the first dimension of every tensor
            varies where the module lets it, so that a smaller last batch runs.
        profile: name of a profile.
        target: what will run it.
        device: whose roofline prices the plan.
        keep_fp32: globs on calls that stay FP32, as for `fp16conv.plan`.
        force_fp16: globs on calls that run in FP16 whatever the rules say.

    Returns:
        A module to call, train and evaluate like the one given.

    Raises:
        UsageError: no example inputs; parameters that are not FP32; a forward that changes its inputs.
        ModelError: torch.export cannot capture the module.
        PlanError: the plan is that of another program.
    """
    if not args and not kwargs:
        raise UsageError("no example inputs", hint="prepare(module, args=(batch,))")
    require_fp32(module)
    programs: dict[bool, ExportedProgram] = {}
    plans: dict[bool, PrecisionPlan] = {}
    checks: dict[bool, InputCheck] = {}
    with modes_kept(module):
        for training in (True, False):
            loaded = _capture(module, training, args, kwargs or {}, dynamic_shapes)
            checks[training] = InputCheck(loaded.program)  # first: runs on fake tensors may fix sizes
            if training and plan is not None:
                made = bind_plan(plan, loaded.graph)
            else:
                made = _decide(loaded, profile, target, device, keep_fp32, force_fp16)
            programs[training] = convert_program(loaded, made, master_weights=True)
            verify_types(programs[training], loaded.source)
            plans[training] = made
    return PreparedModule(module, programs, plans, checks)


def plan_training(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    profile: str = "balanced",
    keep_fp32: Sequence[str] = (),
    force_fp16: Sequence[str] = (),
) -> PrecisionPlan:
    """The plan of a module's training mode, to look at or edit before `prepare`."""
    with modes_kept(module):
        loaded = _capture(module, True, args, kwargs or {}, dynamic_shapes)
    return _decide(loaded, profile, "torch-cuda", "a10", keep_fp32, force_fp16)


def _capture(
    module: torch.nn.Module,
    training: bool,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dynamic_shapes: Any,
) -> LoadedProgram:
    """The program of a mode; parts that are frozen in a module that trains stay frozen."""
    if module.training is not training:
        module.train(training)
    if dynamic_shapes is not None:
        loaded = load_program(module, args, kwargs, dynamic_shapes=dynamic_shapes, training=True)
    else:
        loaded = _capture_varying(module, args, kwargs)
    for spec in loaded.program.graph_signature.output_specs:
        if spec.kind is OutputKind.USER_INPUT_MUTATION:
            raise UsageError(f"the forward changes its input '{spec.target}'", hint="return the new value")
    return loaded


def _capture_varying(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> LoadedProgram:
    """With as many batch sizes as the module lets: from 1 on, from 2 on, or that of the example alone.

    A call with another one is refused when it is made.
    """
    if (varying := batch_shapes(args, kwargs)) is not None:
        for from_one in (True, False):
            with contextlib.suppress(ModelError), _sizes_from_one(from_one):
                return load_program(module, args, kwargs, dynamic_shapes=varying, training=True)
    return load_program(module, args, kwargs, training=True)


def _sizes_from_one(wanted: bool) -> contextlib.AbstractContextManager[object]:
    """Sizes that vary may be 1, or are from 2 on.

    The option is private to torch. Without it sizes vary from 2 on, and a batch of one row is refused when
    it comes, with that bound.
    """
    config: Any = getattr(experimental, "_config", None)
    if not hasattr(config, "backed_size_oblivious"):
        return contextlib.nullcontext()
    patched: contextlib.AbstractContextManager[object] = config.patch(backed_size_oblivious=wanted)
    return patched


def _decide(
    loaded: LoadedProgram,
    profile: str,
    target: str,
    device: str,
    keep_fp32: Sequence[str],
    force_fp16: Sequence[str],
) -> PrecisionPlan:
    example = dict(loaded.example or {})
    seen = calibrate_program(loaded, FeedSource("synthetic", "the example inputs", (lambda: dict(example),)))
    facts = constant_facts(loaded.graph)
    for value, fact in seen.facts.items():
        facts.setdefault(value, fact)
    book = load_book()
    verdicts = judge(
        loaded.graph,
        book,
        facts,
        profile=profile,
        target=target,
        keep_fp32=tuple(keep_fp32),
        force_fp16=tuple(force_fp16),
    )
    costs = estimate_costs(loaded.graph, seen.shapes, load_device(device))
    options = {"profile": profile, "target": target, "device": device}
    return make_plan(loaded.graph, verdicts, costs, rules_digest=book.digest, options=options)
