"""A module that computes in FP16 by a plan while its parameters stay FP32 master weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.utils import _pytree as pytree

from fp16conv.conversion.fx import convert_program, verify_types
from fp16conv.errors import UsageError
from fp16conv.evidence.constants import constant_facts
from fp16conv.evidence.fx import calibrate_program
from fp16conv.execution.feeds import FeedSource
from fp16conv.frontends.fx.program import LoadedProgram
from fp16conv.frontends.fx.sources import load_program, order_keywords
from fp16conv.planning.costs import estimate_costs
from fp16conv.planning.devices import load_device
from fp16conv.planning.plan import PrecisionPlan
from fp16conv.planning.planner import make_plan
from fp16conv.planning.serialize import bind_plan
from fp16conv.rulebook.book import load_book
from fp16conv.rulebook.judge import judge

__all__ = ["PreparedModule", "plan_training", "prepare"]


class PreparedModule(torch.nn.Module):
    """Runs a module's mixed-precision program; made by `prepare`.

    Parameters and buffers are those of `module` itself (FP32): an optimizer may hold either. In training
    mode the program of training mode runs (dropout, batch statistics), in eval mode that of eval mode.

    Args:
        module: the FP32 module.
        programs: mixed program per mode, True for training.
        plans: the plan of each.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        programs: Mapping[bool, ExportedProgram],
        plans: Mapping[bool, PrecisionPlan],
    ) -> None:
        super().__init__()
        self.module = module
        self.programs, self.plans = dict(programs), dict(plans)
        self.training = module.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program of the current mode; the structure of inputs and outputs is the module's."""
        program = self.programs[self.training]
        given = iter(_flatten(program, args, kwargs))
        mutated = {
            spec.target
            for spec in program.graph_signature.output_specs
            if spec.kind is OutputKind.BUFFER_MUTATION
        }
        values = []
        for spec in program.graph_signature.input_specs:
            if spec.kind is InputKind.USER_INPUT:
                value = next(given)
                values.append(spec.arg.value if isinstance(spec.arg, ConstantArgument) else value)
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
        dynamic_shapes: as `torch.export.export` takes them: a last batch of another size needs it.
        profile: name of a profile.
        target: what will run it.
        device: whose roofline prices the plan.
        keep_fp32: globs on calls that stay FP32, as for `fp16conv.plan`.
        force_fp16: globs on calls that run in FP16 whatever the rules say.

    Returns:
        A module to call, train and evaluate like the one given.

    Raises:
        UsageError: no example inputs; parameters that are no FP32.
        ModelError: torch.export cannot capture the module.
        PlanError: the plan is that of another program.
    """
    if not args and not kwargs:
        raise UsageError("no example inputs", hint="prepare(module, args=(batch,))")
    halves = [name for name, p in module.named_parameters() if p.dtype is torch.float16]
    if halves:
        raise UsageError(
            f"parameter '{halves[0]}' is FP16 already",
            hint="give the FP32 module: its parameters are the master weights",
        )
    programs: dict[bool, ExportedProgram] = {}
    plans: dict[bool, PrecisionPlan] = {}
    was_training = module.training
    try:
        for training in (True, False):
            module.train(training)
            loaded = load_program(module, args, kwargs, dynamic_shapes=dynamic_shapes, training=True)
            if training and plan is not None:
                made = bind_plan(plan, loaded.graph)
            else:
                made = _decide(loaded, profile, target, device, keep_fp32, force_fp16)
            programs[training] = convert_program(loaded, made, master_weights=True)
            verify_types(programs[training], loaded.source)
            plans[training] = made
    finally:
        module.train(was_training)
    return PreparedModule(module, programs, plans)


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
    was_training = module.training
    try:
        module.train()
        loaded = load_program(module, args, kwargs, dynamic_shapes=dynamic_shapes, training=True)
        return _decide(loaded, profile, "torch-cuda", "a10", keep_fp32, force_fp16)
    finally:
        module.train(was_training)


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


def _flatten(program: ExportedProgram, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    spec = program.call_spec.in_spec
    flat: list[Any]
    flat, given = pytree.tree_flatten((args, order_keywords(program, kwargs)))
    if spec is not None and given != spec:
        raise UsageError(
            "the inputs are not built like the example inputs",
            why=f"{given} instead of {spec}",
            hint="call the prepared module with the same positional and keyword arguments",
        )
    return flat
