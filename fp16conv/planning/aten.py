"""What the cost model knows of ATen calls: which move nothing, and where their products' shapes stand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["ATEN_FREE", "ATEN_PICK", "ATEN_PRODUCTS"]

_VIEWS: Final = (
    "alias.default as_strided.default chunk.default detach.default diagonal.default dropout.default "
    "expand.default expand_as.default flatten.using_ints narrow.default permute.default reshape.default "
    "select.int slice.Tensor split.Tensor split_with_sizes.default squeeze.default squeeze.dim squeeze.dims "
    "sym_size.int t.default transpose.int unbind.int unflatten.int unsqueeze.default view.default "
    "_unsafe_view.default movedim.int view_as.default lift_fresh_copy.default"
)
ATEN_FREE: Final = frozenset(_VIEWS.split())
"""Views: they change sizes and strides, no kernel moves data."""

ATEN_PICK: Final = frozenset({"embedding.default", "index_select.default", "gather.default", "index.Tensor"})
"""These read only the elements they return from their data input."""

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
