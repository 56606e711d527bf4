"""Sizes of products against multiples of 8, worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from fp16conv.graph import DataType, Dim, GraphBuilder, ModelGraph, ScopeKind, Use, ValueKind
from fp16conv.planning import device_names, estimate_costs, load_device
from fp16conv.planning.alignment import Product, products
from fp16conv.reporting.summary import summarize_alignment

Shape = tuple[Dim, ...] | None
MS = "com.microsoft"


def graph_of(ops: Sequence[tuple[str, str, Sequence[Shape], Mapping[str, object]]]) -> ModelGraph:
    """Operators beside each other, all of whose inputs are FLOAT."""
    b = GraphBuilder("beside", "0" * 64, {"": 21})
    main = b.add_scope(ScopeKind.MAIN, "main")
    ins: list[int] = []
    outs: list[int] = []
    for number, (domain, op_type, shapes, attrs) in enumerate(ops):
        own = [b.add_value(f"x{number}.{i}", DataType.FLOAT, s, main, ValueKind.INPUT)
               for i, s in enumerate(shapes)]  # fmt: skip
        op = b.add_op(f"op{number}", domain, op_type, 21, main, own, attrs=attrs)
        y = b.add_value(f"y{number}", DataType.FLOAT, None, main, ValueKind.RESULT, producer=op, slot=0)
        b.close_op(op, [y])
        b.add_typevar(op, main, "T", [Use(op, i, main) for i in range(len(own))], [y], True)
        for x in own:
            b.add_typevar(None, main, f"input:{x}", [], [x], True)
        ins += own
        outs.append(y)
    b.close_scope(main, ins, outs)
    for slot in range(len(outs)):
        b.add_typevar(None, main, f"output:{slot}", [Use(None, slot, main)], [], True)
    return b.freeze()


def found(graph: ModelGraph, dtype: DataType = DataType.FLOAT16, **device: object) -> tuple[Product, ...]:
    costs = estimate_costs(graph, {}, replace(load_device(), **device))  # type: ignore[arg-type]
    return products(graph, {v.id: dtype for v in graph.typevars}, costs)


HEAD = ("head size", 64)
CASES = [
    ("", "MatMul", [(5, 64), (64, 32)], {}, [("K", 64), ("N", 32)], []),
    ("", "MatMul", [("batch", 7, 768), (768, 50257)], {}, [("K", 768), ("N", 50257)], [("N", 50257)]),
    ("", "MatMul", [(2, 12, 197, 64), (2, 12, 64, 197)], {}, [("K", 64), ("N", 197)], [("N", 197)]),
    ("", "MatMul", [None, (12, 16)], {}, [("K", 12), ("N", 16)], [("K", 12)]),
    ("", "MatMul", [(5, 16), (16, "n")], {}, [("K", 16), ("N", None)], []),
    ("", "Gemm", [(64, 5), (24, 64)], {"transA": 1, "transB": 1}, [("K", 64), ("N", 24)], []),
    (MS, "FusedMatMul", [(5, 24), (10, 24)], {"transB": 1}, [("K", 24), ("N", 10)], [("N", 10)]),
    (MS, "MatMulNBits", [(5, 24)], {"K": 24, "N": 100}, [("K", 24), ("N", 100)], [("N", 100)]),
    ("", "Conv", [(1, 3, 9, 9), (64, 3, 7, 7)], {}, [("input channels", 3), ("output channels", 64)],
     [("input channels", 3)]),
    ("", "Conv", [(1, 64, 9, 9), (64, 16, 3, 3)], {"group": 4},
     [("input channels", 16), ("output channels", 16)], []),
    ("", "ConvTranspose", [(1, 16, 9, 9), (16, 3, 2, 2)], {},
     [("input channels", 16), ("output channels", 3)], [("output channels", 3)]),
    ("", "LSTM", [(7, 2, 20), (1, 64, 20), (1, 64, 16)], {}, [("input size", 20), ("hidden size", 16)],
     [("input size", 20)]),
    ("", "Attention", [(2, 4, 7, 64), (2, 4, 9, 64), (2, 4, 9, 64)], {}, [HEAD], []),
    ("", "Attention", [(2, 7, 240), (2, 9, 240), (2, 9, 160)], {"q_num_heads": 4, "kv_num_heads": 4},
     [("head size", 60), ("value head size", 40)], [("head size", 60)]),
    (MS, "GroupQueryAttention", [(2, 7, 512), (2, 7, 128), (2, 7, 128)], {"num_heads": 8, "kv_num_heads": 2},
     [HEAD], []),
    (MS, "Attention", [(2, 7, 96), (96, 360)], {"num_heads": 4}, [("K", 96), ("N", 360), ("head size", 30)],
     [("head size", 30)]),
    ("aten", "linear.default", [(5, 24), (10, 24), (10,)], {}, [("K", 24), ("N", 10)], [("N", 10)]),
    ("aten", "addmm.default", [(10,), (5, 24), (24, 10)], {}, [("K", 24), ("N", 10)], [("N", 10)]),
    ("aten", "convolution.default", [(1, 16, 9, 9), (16, 3, 2, 2)], {"transposed": True, "groups": 1},
     [("input channels", 16), ("output channels", 3)], [("output channels", 3)]),
    ("aten", "lstm.input", [(7, 2, 20), (1, 2, 16), (1, 2, 16), (64, 20), (64, 16), (64,), (64,)], {},
     [("input size", 20), ("hidden size", 16)], [("input size", 20)]),
    ("aten", "gru_cell.default", [(2, 24), (2, 10), (30, 24), (30, 10), (30,), (30,)], {},
     [("input size", 24), ("hidden size", 10)], [("hidden size", 10)]),
    ("aten", "scaled_dot_product_attention.default", [(2, 4, 7, 64)] * 3, {}, [HEAD], []),
]  # fmt: skip


@pytest.mark.parametrize(("domain", "op_type", "shapes", "attrs", "sizes", "unaligned"), CASES)
def test_sizes(domain, op_type, shapes, attrs, sizes, unaligned) -> None:  # type: ignore[no-untyped-def]
    (product,) = found(graph_of([(domain, op_type, shapes, attrs)]))
    assert list(product.sizes) == sizes
    assert list(product.unaligned) == unaligned
    assert product.is_open is (not unaligned and any(size is None for _, size in sizes))


@pytest.mark.parametrize(
    ("op_type", "shapes", "attrs"),
    [
        ("Add", [(5, 5), (5, 5)], {}),
        ("MatMul", [(5, 9), (9, 1)], {}),  # a column: a product with a vector
        ("MatMul", [(9,), (9, 5)], {}),
        ("MatMul", [None, None], {}),
        ("Conv", [(1, 12, 9, 9), (12, 1, 3, 3)], {"group": 12}),  # depthwise: nothing to pad
        ("Einsum", [(5, 9), (9, 5)], {"equation": "ij,jk->ik"}),
    ],
)
def test_not_judged(op_type: str, shapes: list[Shape], attrs: dict[str, object]) -> None:
    assert found(graph_of([("", op_type, shapes, attrs)])) == ()


def test_only_fp16_counts() -> None:
    graph = graph_of([("", "MatMul", [(5, 9), (9, 5)], {})])
    assert found(graph, DataType.FLOAT) == ()
    assert len(found(graph)) == 1


def test_the_device_says_the_multiple() -> None:
    graph = graph_of([("", "MatMul", [(5, 16), (16, 24)], {})])
    assert all(load_device(name).alignment_bytes == 16 for name in device_names())
    assert found(graph, alignment_bytes=None) == ()
    assert found(graph)[0].unaligned == ()
    assert found(graph, alignment_bytes=32)[0].unaligned == (("N", 24),)


def test_summary() -> None:
    graph = graph_of(
        [
            ("", "MatMul", [(10, 8), (8, 8)], {}),
            ("", "MatMul", [(1, 8), (8, 10)], {}),
            ("", "MatMul", [(1, 8), (8, 20)], {}),
            ("", "MatMul", [(1, 8), (8, "n")], {}),
        ]
    )
    costs = estimate_costs(graph, {}, load_device())
    listed = found(graph)
    summary = summarize_alignment(graph, listed, costs.macs)
    assert summary is not None
    assert (summary.aligned, summary.unaligned, summary.open, summary.multiple) == (1, 2, 1, 8)
    assert summary.macs_share == 640 / (640 + 80 + 160)
    assert [(p.op, p.sizes) for p in summary.largest] == [("op2", (("N", 20),)), ("op1", (("N", 10),))]
    assert summarize_alignment(graph, (), costs.macs) is None
