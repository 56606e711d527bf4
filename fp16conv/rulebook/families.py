"""Which ONNX operator an ATen call is, for rules about numbers: they hold whatever names the operator.

Classes of ATen calls have rules of their own (rules/aten). What a constant does, whether an eps guards a
division, where a mask flows: that is the same arithmetic under two names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fp16conv.graph import Op

__all__ = ["FAMILIES", "family"]

_NAMES: Final[Mapping[str, str]] = {
    # arithmetic
    "Add": "add.Tensor add.Scalar",
    "Sub": "sub.Tensor sub.Scalar rsub.Tensor rsub.Scalar",
    "Mul": "mul.Tensor mul.Scalar",
    "Div": "div.Tensor div.Scalar true_divide.Tensor",
    "Pow": "pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar",
    "Sqrt": "sqrt.default",
    "Reciprocal": "reciprocal.default rsqrt.default",
    "Log": "log.default log2.default log10.default",
    "Exp": "exp.default exp2.default expm1.default",
    "Abs": "abs.default",
    "Sigmoid": "sigmoid.default",
    "Tanh": "tanh.default",
    # bounds
    "Clip": "clamp.default clamp.Tensor hardtanh.default clamp_min.default clamp_min.Tensor",
    "Max": "maximum.default max.other fmax.default",
    "Min": "minimum.default min.other fmin.default clamp_max.default clamp_max.Tensor",
    # comparisons and selections
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
    "ReduceLogSumExp": "logsumexp.default",
    "ReduceL2": "linalg_vector_norm.default",
    "MaxPool": "max_pool2d.default max_pool2d_with_indices.default max_pool1d.default max_pool3d.default",
    "AveragePool": "avg_pool1d.default avg_pool2d.default avg_pool3d.default",
    "GlobalAveragePool": "adaptive_avg_pool2d.default _adaptive_avg_pool2d.default",
    # movement
    "Cast": "_to_copy.default to.dtype to.dtype_layout",
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
    "Transpose": "permute.default transpose.int t.default",
    "Trilu": "triu.default tril.default",
    "Unsqueeze": "unsqueeze.default",
    "ScatterElements": "scatter.src scatter.value",
    "ConstantOfShape": (
        "full.default full_like.default new_full.default zeros.default zeros_like.default new_zeros.default "
        "ones.default ones_like.default new_ones.default scalar_tensor.default fill.Scalar"
    ),
}

FAMILIES: Final[Mapping[str, str]] = {
    f"aten::{name}": onnx for onnx, names in _NAMES.items() for name in names.split()
}


def family(op: Op) -> str:
    """The ONNX operator whose arithmetic an operator does; its own key where there is none.

    Example:
        >>> FAMILIES["aten::masked_fill.Scalar"]
        'Where'
    """
    return FAMILIES.get(op.key, op.key) if op.domain else op.op_type
