"""Retype a mixed model: every FP16 value becomes an FP32 value that was rounded."""

from __future__ import annotations

import contextlib

import onnx_ir as ir

from fp16conv.execution.failures import clone_to_run
from fp16conv.execution.inlining import inline_functions
from fp16conv.execution.rounding import EmulationOptions, Rounder, shape_of, widen_tensor, widen_type
from fp16conv.execution.traits import is_exact, needs_fp16
from fp16conv.frontends.inference import infer_types, opset_of

__all__ = ["complete_types", "forget_shapes", "renew_shapes", "retype_model"]

_STANDARD = ("", "ai.onnx")
_FP16 = ir.DataType.FLOAT16
_DTYPE_ATTRIBUTES = frozenset(
    ("dtype", "output_dtype", "output_datatype", "precision", "softmax_precision", "stash_type")
)
_SMALL = 1024  # bytes; larger tensors never feed a shape
_DEFAULT_OPSET = 17  # of ai.onnx, for models that import only other domains


def retype_model(
    model: ir.Model, options: EmulationOptions
) -> tuple[ir.Model, Rounder, list[str], set[ir.Node]]:
    """Clone a model, inline its functions and retype it.

    Returns:
        The new model, the rounder it was made with, notes, and the nodes that computed in FP16.
    """
    work = clone_to_run(model)
    inline_functions(work)
    if not any(domain in work.opset_imports for domain in _STANDARD):
        work.opset_imports[""] = _DEFAULT_OPSET
    if options.fp16_accumulation:  # sums are cut by declared lengths
        complete_types(work)
    else:
        renew_shapes(work)
    retyping = _Retyping(work, Rounder(work, options))
    retyping.run()
    return work, retyping.rounder, retyping.notes, retyping.narrow


def forget_shapes(model: ir.Model) -> None:
    """Drop the declared shapes of results.

    Where symbolic names in a file are wrong, ONNX Runtime would share buffers between values of two sizes.
    """
    for node in model.graph.all_nodes():
        for output in node.outputs:
            if output.is_graph_output() and output.shape is not None:  # the checker wants a rank here
                output.shape = ir.Shape([None] * len(output.shape))
            else:
                output.shape = None


def renew_shapes(model: ir.Model) -> None:
    """Replace the declared shapes of results by those that follow from the inputs.

    ONNX Runtime finds them itself, but takes up to ten times as long to load a model where FP16 values have
    none: it looks for a free name for every unknown size, among all of them.
    """
    forget_shapes(model)
    complete_types(model)


def complete_types(model: ir.Model) -> None:
    """Give every value that lacks one the type (and shape) inference finds; reads no large weights."""
    hidden: list[tuple[ir.Value, ir.TensorProtocol]] = []
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and tensor.nbytes > _SMALL:
                hidden.append((value, tensor))
                value.const_value = ir.ExternalTensor(
                    "weights", 0, tensor.nbytes, tensor.dtype, shape=shape_of(tensor), name=value.name or ""
                )
    try:
        types, _ = infer_types(model, ir.to_proto(model))
    finally:
        for value, tensor in hidden:
            value.const_value = tensor
    for value, proto in types.items():
        if value.type is None:
            with contextlib.suppress(ir.serde.SerdeError):  # maps
                value.type = ir.serde.deserialize_type_proto_for_type(proto)
        if value.shape is None:
            with contextlib.suppress(ValueError):
                value.shape = ir.serde.deserialize_type_proto_for_shape(proto)


class _Retyping:
    def __init__(self, work: ir.Model, rounder: Rounder) -> None:
        self.work, self.rounder = work, rounder
        self.notes: list[str] = []
        self.narrow: set[ir.Node] = set()
        self._rim_outputs = [
            (slot, value.name or "")
            for slot, value in enumerate(work.graph.outputs)
            if _is_fp16(value) and not value.is_graph_input() and not value.is_initializer()
        ]

    def run(self) -> None:
        graphs = list(self.work.graphs())
        keep = {
            node: [slot for slot, value in enumerate(node.inputs) if value is not None and _is_fp16(value)]
            for graph in graphs
            for node in graph
            if _touches_fp16(node) and needs_fp16(node, opset_of(node, self.work.opset_imports))
        }
        for graph in graphs:
            head: list[ir.Node] = []
            for value in graph.inputs:
                self._input(value, graph, head)
            for value in list(graph.initializers.values()):
                if not value.is_graph_input():
                    self._initializer(value, graph, head)
            for node in list(graph):
                if node in keep:
                    self._keep(node, graph, keep[node])
                else:
                    self._node(node, graph)
            first = next((n for n in graph), None)
            if head and first is not None:
                graph.insert_before(first, head)
            elif head:
                graph.extend(head)
        self._outputs()

    def _input(self, value: ir.Value, graph: ir.Graph, head: list[ir.Node]) -> None:
        wide = widen_type(value.type)
        if wide is None:
            return
        if graph is not self.work.graph:
            value.type = wide
        elif isinstance(value.type, ir.TensorType):
            head.extend(self._behind(value))
        else:
            value.type = wide
            self.notes.append(f"input '{value.name}' (a container of FP16) takes FP32 in the emulation")

    def _initializer(self, value: ir.Value, graph: ir.Graph, head: list[ir.Node]) -> None:
        tensor = value.const_value
        if tensor is None or tensor.dtype is not _FP16:
            return
        if value.is_graph_output() and graph is self.work.graph:
            head.extend(self._behind(value))
            return
        value.const_value = widen_tensor(tensor, self.rounder)
        value.type = ir.TensorType(ir.DataType.FLOAT)

    def _behind(self, value: ir.Value) -> list[ir.Node]:
        """Leave a value of the interface in FP16; its readers get the widened one."""
        readers = list(value.uses())
        nodes = self.rounder.widen(value, self.rounder.fresh(value.name, "f32"))
        for node, slot in readers:
            node.replace_input_with(slot, nodes[-1].outputs[0])
        return nodes

    def _node(self, node: ir.Node, graph: ir.Graph) -> None:
        op = node.op_type if node.domain in _STANDARD else ""
        if op == "CastLike" and _is_fp16(node.outputs[0]):
            node = self._as_cast(node, graph)
            op = "Cast"
        if op == "Cast" and _is_fp16(node.outputs[0]):
            self._widen_output(node.outputs[0], node, graph)
            return
        self._attributes(node)
        for output in node.outputs:
            wide = widen_type(output.type)
            if wide is None:
                continue
            self.narrow.add(node)
            is_tensor = isinstance(output.type, ir.TensorType)
            output.type = wide
            if is_tensor and op != "Constant" and not is_exact(node):
                self._round_output(output, node, graph)

    def _as_cast(self, node: ir.Node, graph: ir.Graph) -> ir.Node:
        """CastLike reads its type off a value that is FP32 by now."""
        old = node.outputs[0]
        cast = self.rounder.cast(node.inputs[0], _FP16, self.rounder.fresh(old.name, "cast"))  # type: ignore[arg-type]
        graph.insert_after(node, cast)
        old.replace_all_uses_with(cast.outputs[0], replace_graph_outputs=True)
        name = old.name
        graph.remove(node, safe=False)
        cast.outputs[0].name = name
        return cast

    def _keep(self, node: ir.Node, graph: ir.Graph, slots: list[int]) -> None:
        """Feed an operator that must stay in FP16 from casts, and widen what it gives."""
        for slot in slots:
            value = node.inputs[slot]
            if value is not None and isinstance(value.type, ir.TensorType):
                cast = self.rounder.cast(value, _FP16, self.rounder.fresh(value.name, "fp16"))
                graph.insert_before(node, cast)
                node.replace_input_with(slot, cast.outputs[0])
        for output in node.outputs:
            if _is_fp16(output):
                self._widen_output(output, node, graph)
        self.notes.append(f"{node.domain or 'ai.onnx'}::{node.op_type} '{node.name}' runs in real FP16")
        self.narrow.discard(node)

    def _attributes(self, node: ir.Node) -> None:
        for name, attr in list(node.attributes.items()):
            if attr.is_ref():
                continue
            if attr.type is ir.AttributeType.TENSOR and attr.value.dtype is _FP16:  # as_tensor() is slow
                node.attributes[name] = ir.AttrTensor(name, widen_tensor(attr.value, self.rounder))
                node.outputs[0].const_value = None
            elif (
                attr.type is ir.AttributeType.INT
                and name in _DTYPE_ATTRIBUTES
                and attr.as_int() == int(_FP16)
            ):
                node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.FLOAT))
            elif attr.type is ir.AttributeType.TYPE_PROTO:
                wide = widen_type(attr.value.type)
                if wide is not None:
                    node.attributes[name] = ir.Attr(
                        name, ir.AttributeType.TYPE_PROTO, ir.TypeAndShape(wide, attr.value.shape)
                    )

    def _round_output(self, output: ir.Value, node: ir.Node, graph: ir.Graph) -> None:
        self._replace(output, node, graph, "raw")

    def _widen_output(self, output: ir.Value, node: ir.Node, graph: ir.Graph) -> None:
        self._replace(output, node, graph, "half")

    def _replace(self, output: ir.Value, node: ir.Node, graph: ir.Graph, suffix: str) -> None:
        """Put rounding (or widening) behind an output; the result takes over its name and its readers."""
        name = output.name or ""
        output.name = self.rounder.fresh(name, suffix)
        readers = list(output.uses())
        slots = [slot for slot, value in enumerate(graph.outputs) if value is output]
        make = self.rounder.widen if suffix == "half" else self.rounder.round
        nodes = make(output, name)
        result = nodes[-1].outputs[0]
        graph.insert_after(node, nodes)
        for reader, slot in readers:
            reader.replace_input_with(slot, result)
        for slot in slots:
            graph.outputs[slot] = result

    def _outputs(self) -> None:
        """The interface keeps its types."""
        for slot, name in self._rim_outputs:
            value = self.work.graph.outputs[slot]
            if not isinstance(value.type, ir.TensorType):
                self.notes.append(f"output '{name}' (a container of FP16) gives FP32 in the emulation")
                continue
            if _is_fp16(value):
                continue
            value.name = self.rounder.fresh(name, "f32")
            cast = self.rounder.cast(value, _FP16, name)
            self.work.graph.append(cast)
            self.work.graph.outputs[slot] = cast.outputs[0]


def _is_fp16(value: ir.Value) -> bool:
    return widen_type(value.type) is not None


def _touches_fp16(node: ir.Node) -> bool:
    return any(v is not None and _is_fp16(v) for v in (*node.inputs, *node.outputs))
