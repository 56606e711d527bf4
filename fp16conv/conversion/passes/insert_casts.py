"""One cast per value and target dtype, right behind the producer, shared by all readers in all scopes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from fp16conv.conversion.assignment import Assignment
from fp16conv.conversion.passes.annotate_nodes import describe
from fp16conv.conversion.passes.convert_sparse import is_sparse_initializer
from fp16conv.conversion.tensors import dtype_attribute, retype, to_ir
from fp16conv.conversion.workspace import Workspace
from fp16conv.errors import PlanError
from fp16conv.graph import Container, DataType, ScopeKind, Use, ValueKind

__all__ = ["InsertCastsPass"]

CODES_SINCE = 6  # before this opset, Cast names its type in words
SUFFIX = {DataType.FLOAT: "fp32", DataType.FLOAT16: "fp16"}


@dataclass(frozen=True)
class InsertCastsPass(ir.passes.InPlacePass):
    """Cast where a reader's type variable differs from the value's.

    The cast of `x` is named `x__fp16` or `x__fp32`. Where an output of the graph or of a function needs
    the cast, the cast takes the output's name, so that the interface keeps it, and the uncast value gets
    the suffix.
    """

    workspace: Workspace
    assignment: Assignment

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for info in self.workspace.graph.values:
            if info.is_constant or is_sparse_initializer(self.workspace.graph, info.id):
                continue  # their readers have been served
            misfits = self.assignment.misfits(info.id)
            modified |= bool(misfits)
            uses = self._unwiden(info.id, misfits)
            if uses:
                self._insert(info.id, uses)
        return ir.passes.PassResult(model, modified)

    def _unwiden(self, value: int, uses: Sequence[Use]) -> Sequence[Use]:
        """Let operators read what a cast widened instead of narrowing it again; returns the other uses."""
        source = self.assignment.widened(value)
        if source is None or self.assignment.of_value(value) is not DataType.FLOAT:
            return uses
        for use in uses:
            if use.op is not None:
                self.workspace.redirect(use, self.workspace.values[source])
        return [use for use in uses if use.op is None]

    def _insert(self, value: int, uses: Sequence[Use]) -> None:
        ws = self.workspace
        info, source = ws.graph.values[value], ws.values[value]
        own = self.assignment.of_value(value)
        target = DataType.FLOAT if own is DataType.FLOAT16 else DataType.FLOAT16
        if info.container is not Container.TENSOR:
            raise PlanError(
                f"asks to cast a {info.container}, which ONNX cannot do",
                where=f"value '{info.name}'",
                hint="decide one dtype for all operators that hand it on",
            )
        cast = ir.Value()
        in_words = ws.opset(info.scope) < CODES_SINCE
        if any(use.op is None for use in uses) or in_words:  # inference knows nothing of a Cast in words
            cast.type, cast.shape = retype(source.type, target), source.shape
        if in_words and cast.type is None:
            cast.type = ir.TensorType(to_ir(target))
        rims = {ws.graph.scopes[use.scope].kind for use in uses if use.op is None}
        is_input = info.kind is ValueKind.INPUT
        if ScopeKind.MAIN in rims or (ScopeKind.FUNCTION in rims and not is_input):
            if is_input:
                raise PlanError(
                    f"asks for {target} at an output that is the {own} input of the same name",
                    where=f"value '{info.name}'",
                    hint="decide one dtype for both",
                )
            self._hand_over(source, cast)
            if in_words:
                source.type = ir.TensorType(to_ir(own))
            source.name = ws.names.take(f"{info.name}__{SUFFIX[own]}")
            cast.name = info.name
            label = ws.names.take(f"{info.name}__{SUFFIX[target]}")
        else:
            cast.name = label = ws.names.take(f"{info.name}__{SUFFIX[target]}")
        node = ir.Node(
            "",
            "Cast",
            [source],
            [dtype_attribute("to", target, as_text=in_words)],
            outputs=[cast],
            name=label,
            metadata_props=describe(self.assignment, self._cause(value, uses, target)),
        )
        ws.insert_after(value, node)
        for use in uses:
            ws.redirect(use, cast)

    def _hand_over(self, source: ir.Value, cast: ir.Value) -> None:
        """What the user wrote about a graph output belongs to the value that bears its name."""
        cast.doc_string, source.doc_string = source.doc_string, None
        cast.metadata_props.update(source.metadata_props)
        source.metadata_props.clear()
        cast.meta.update(source.meta)
        source.meta.clear()
        source.type = source.shape = None

    def _cause(self, value: int, uses: Sequence[Use], target: DataType) -> int | None:
        """The type variable on the FP32 side: it is the reason for the cast."""
        graph = self.workspace.graph
        found = graph.typevar_of_use(uses[0]) if target is DataType.FLOAT else graph.typevar_of_value(value)
        return None if found is None else found.id
