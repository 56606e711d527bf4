"""Which ONNX operator an ATen call is, for rules about numbers and idioms: they hold under any name.

Classes of ATen calls have rules of their own (rules/aten). What a constant does, whether an eps guards a
division, where a mask flows, which operators are a norm written out: that is the same arithmetic under two
names, and sometimes with the operands in another order. Three families have no operator in ONNX: `Rsqrt`,
`Variance` and `Deviation`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fp16conv.graph import Op

__all__ = ["FAMILIES", "FILL_NUMBERS", "FILL_SLOTS", "family", "operand_slots", "operands"]

_NAMES: Final[Mapping[str, str]] = {
    # arithmetic
    "Add": "add.Tensor add.Scalar",
    "Sub": "sub.Tensor sub.Scalar rsub.Tensor rsub.Scalar",
    "Mul": "mul.Tensor mul.Scalar square.default outer.default",
    "Neg": "neg.default",
    "Mod": "fmod.Scalar fmod.Tensor remainder.Scalar remainder.Tensor",
    "Div": "div.Tensor div.Scalar true_divide.Tensor",
    "Pow": "pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar",
    "Sqrt": "sqrt.default",
    "Reciprocal": "reciprocal.default",
    "Rsqrt": "rsqrt.default",
    "Log": "log.default log2.default log10.default",
    "Exp": "exp.default exp2.default expm1.default",
    "Abs": "abs.default",
    "Sign": "sign.default",
    "Relu": "relu.default",
    "Sigmoid": "sigmoid.default",
    "Tanh": "tanh.default",
    "Softplus": "softplus.default",
    "Gelu": "gelu.default",
    "Elu": "elu.default",
    "Selu": "selu.default",
    "Celu": "celu.default",
    "LeakyRelu": "leaky_relu.default",
    "PRelu": "prelu.default _prelu_kernel.default",
    "HardSigmoid": "hardsigmoid.default",
    "HardSwish": "hardswish.default",
    "Mish": "mish.default",
    "Erf": "erf.default",
    "Sin": "sin.default",
    "Cos": "cos.default",
    "Tan": "tan.default",
    "Atan": "atan.default",
    "Floor": "floor.default",
    "Ceil": "ceil.default",
    "Round": "round.default round.decimals",
    # bounds
    "Clip": "clamp.default clamp.Tensor hardtanh.default clamp_min.default clamp_min.Tensor",
    "Max": "maximum.default max.other fmax.default",
    "Min": "minimum.default min.other fmin.default clamp_max.default clamp_max.Tensor",
    # comparisons and selections
    "Equal": "eq.Scalar eq.Tensor",
    "Greater": "gt.Scalar gt.Tensor",
    "GreaterOrEqual": "ge.Scalar ge.Tensor",
    "Less": "lt.Scalar lt.Tensor",
    "LessOrEqual": "le.Scalar le.Tensor",
    "Where": (
        "where.self where.Scalar where.ScalarOther where.ScalarSelf masked_fill.Scalar masked_fill.Tensor"
    ),
    "ArgMax": "argmax.default",
    "ArgMin": "argmin.default",
    "TopK": "topk.default sort.default sort.stable",
    # products
    "MatMul": "matmul.default mm.default bmm.default mv.default linalg_vecdot.default",
    "Gemm": "linear.default addmm.default addmv.default baddbmm.default addbmm.default",
    "Einsum": "einsum.default",
    "Conv": (
        "conv1d.default conv1d.padding conv2d.default conv2d.padding conv3d.default conv3d.padding "
        "convolution.default _convolution.default"
    ),
    "ConvTranspose": "conv_transpose1d.default conv_transpose2d.input conv_transpose3d.input",
    "LSTM": "lstm.input",
    "GRU": "gru.input",
    "RNN": "rnn_tanh.input rnn_relu.input",
    "Attention": (
        "scaled_dot_product_attention.default _scaled_dot_product_flash_attention.default "
        "_scaled_dot_product_flash_attention_for_cpu.default _scaled_dot_product_efficient_attention.default"
    ),
    # reductions
    "Softmax": "softmax.int _softmax.default _safe_softmax.default",
    "LogSoftmax": "log_softmax.int _log_softmax.default",
    "ReduceSum": "sum.default sum.dim_IntList",
    "ReduceMean": "mean.default mean.dim",
    "ReduceMax": "amax.default max.default max.dim",
    "ReduceMin": "amin.default min.default min.dim",
    "ReduceProd": "prod.default prod.dim_int",
    "ReduceLogSumExp": "logsumexp.default",
    "CumSum": "cumsum.default",
    "Variance": "var.default var.dim var.correction",
    "Deviation": "std.default std.dim std.correction",
    "ReduceL2": "linalg_vector_norm.default",
    "MaxPool": "max_pool2d.default max_pool2d_with_indices.default max_pool1d.default max_pool3d.default",
    "AveragePool": "avg_pool1d.default avg_pool2d.default avg_pool3d.default",
    "GlobalAveragePool": "adaptive_avg_pool2d.default _adaptive_avg_pool2d.default",
    # norms
    "BatchNormalization": (
        "batch_norm.default cudnn_batch_norm.default native_batch_norm.default "
        "_native_batch_norm_legit.default _native_batch_norm_legit_no_training.default"
    ),
    "InstanceNormalization": "instance_norm.default",
    "LayerNormalization": "layer_norm.default native_layer_norm.default",
    "GroupNormalization": "group_norm.default native_group_norm.default",
    "RMSNormalization": "rms_norm.default _fused_rms_norm.default",
    # movement
    "Cast": "_to_copy.default to.dtype to.dtype_layout type_as.default",
    "Concat": "cat.default stack.default",
    "Expand": "expand.default expand_as.default repeat.default",
    "Flatten": "flatten.using_ints",
    "Gather": "index_select.default embedding.default index.Tensor",
    "GatherElements": "gather.default",
    "Identity": (
        "alias.default clone.default detach.default contiguous.default lift_fresh_copy.default "
        "dropout.default"
    ),
    "Pad": "constant_pad_nd.default",
    "Reshape": "view.default reshape.default _unsafe_view.default unflatten.int view_as.default",
    "Slice": "slice.Tensor select.int narrow.default",
    "Split": "split.Tensor split_with_sizes.default chunk.default unbind.int",
    "Squeeze": "squeeze.default squeeze.dim squeeze.dims",
    "Tile": "tile.default",
    "Transpose": "permute.default transpose.int t.default movedim.int",
    "Trilu": "triu.default tril.default",
    "Unsqueeze": "unsqueeze.default",
    "ScatterElements": "scatter.src scatter.value",
    "Resize": (
        "upsample_nearest1d.vec upsample_nearest2d.vec upsample_nearest3d.vec upsample_linear1d.vec "
        "upsample_bilinear2d.vec upsample_trilinear3d.vec upsample_bicubic2d.vec"
    ),
    "Range": "arange.default arange.start arange.start_step",
    "ConstantOfShape": (
        "full.default full_like.default new_full.default zeros.default zeros_like.default new_zeros.default "
        "ones.default ones_like.default new_ones.default scalar_tensor.default fill.Scalar"
    ),
}

FAMILIES: Final[Mapping[str, str]] = {
    f"aten::{name}": onnx for onnx, names in _NAMES.items() for name in names.split()
}


_ORDERS: Final[Mapping[tuple[int, ...], str]] = {
    (0, 0): "square.default",
    (1, 0): "rsub.Tensor rsub.Scalar",
    (0, 2): "gather.default index_select.default",
    (0, 2, 3): "scatter.src scatter.value",
    (1, 2, 0): (
        "masked_fill.Scalar masked_fill.Tensor addmm.default addmv.default addbmm.default baddbmm.default"
    ),
}
_SLOTS: Final[Mapping[str, tuple[int, ...]]] = {
    f"aten::{name}": order for order, names in _ORDERS.items() for name in names.split()
}

FILL_NUMBERS: Final[Mapping[str, float]] = {
    **dict.fromkeys(("aten::zeros.default", "aten::zeros_like.default", "aten::new_zeros.default"), 0.0),
    **dict.fromkeys(("aten::ones.default", "aten::ones_like.default", "aten::new_ones.default"), 1.0),
}
"""The number that a ConstantOfShape of ATen fills its result with, where its name tells."""

FILL_SLOTS: Final[Mapping[str, int]] = {
    "aten::full.default": 1,
    "aten::full_like.default": 1,
    "aten::fill.Scalar": 1,
    "aten::new_full.default": 2,
    "aten::scalar_tensor.default": 0,
}
"""The slot that holds the number, where it is an argument."""


def family(op: Op) -> str:
    """The ONNX operator whose arithmetic an operator does; its own key where there is none.

    Example:
        >>> FAMILIES["aten::masked_fill.Scalar"]
        'Where'
    """
    return FAMILIES.get(op.key, op.key) if op.domain else op.op_type


def operand_slots(op: Op) -> Sequence[int]:
    """The input slots of an operator in the order in which the operator of its family reads them.

    Arguments that are no tensors leave empty slots behind the operands of an ATen call: they are left out.
    """
    if not op.domain:
        return range(len(op.inputs))
    order = _SLOTS.get(op.key)
    if order is not None:
        return order
    last = max((slot for slot, value in enumerate(op.inputs) if value is not None), default=-1)
    return range(last + 1)


def operands(op: Op) -> tuple[int | None, ...]:
    """The input values of an operator in the order in which the operator of its family reads them."""
    return tuple(op.inputs[slot] for slot in operand_slots(op)) if op.domain else op.inputs
