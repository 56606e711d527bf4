"""What the cost model knows of ATen calls: which start no kernel, and where their products' shapes stand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["ATEN_PRODUCTS", "ATEN_VIEWS"]

_VIEWS: Final = (
    "as_strided.default chunk.default diagonal.default expand.default movedim.int narrow.default "
    "permute.default select.int slice.Tensor split.Tensor split_with_sizes.default t.default transpose.int "
    "unbind.int"
)
ATEN_VIEWS: Final = frozenset(_VIEWS.split())
"""Calls that change sizes and strides and start no kernel: the bytes are moved by who reads the result."""

ATEN_PRODUCTS: Final[Mapping[str, str]] = {
    name: kind
    for kind, names in {
        "linear": "linear.default",
        "matmul": "matmul.default mm.default bmm.default mv.default dot.default linalg_vecdot.default",
        "added": "addmm.default addmv.default addbmm.default baddbmm.default",
        "conv": (
            "conv1d.default conv1d.padding conv2d.default conv2d.padding conv3d.default conv3d.padding "
            "convolution.default _convolution.default cudnn_convolution.default"
        ),
        "conv_transpose": "conv_transpose1d.default conv_transpose2d.input conv_transpose3d.input",
        "recurrent": "lstm.input gru.input rnn_tanh.input rnn_relu.input",
        "cell": "lstm_cell.default gru_cell.default rnn_tanh_cell.default rnn_relu_cell.default",
        "attend": (
            "scaled_dot_product_attention.default _scaled_dot_product_flash_attention.default "
            "_scaled_dot_product_flash_attention_for_cpu.default "
            "_scaled_dot_product_efficient_attention.default _scaled_dot_product_cudnn_attention.default"
        ),
        "einsum": "einsum.default",
    }.items()
    for name in names.split()
}
"""Calls that multiply and accumulate, by how their count follows from shapes."""
