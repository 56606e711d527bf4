"""MAC counts and roofline prices against figures worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from fp16conv.errors import RuleError, UsageError
from fp16conv.graph import DataType, Dim, GraphBuilder, ModelGraph, ScopeKind, Use, ValueKind
from fp16conv.planning import device_names, estimate_costs, load_device, macs

F32 = DataType.FLOAT
Shape = tuple[Dim, ...]


def one_op(
    op_type: str,
    inputs: Sequence[Shape | None],
    outputs: Sequence[Shape | None],
    *,
    domain: str = "",
    attrs: Mapping[str, object] | None = None,
    dtype: DataType = F32,
) -> ModelGraph:
    b = GraphBuilder("one", "0" * 64, {"": 21})
    main = b.add_scope(ScopeKind.MAIN, "main")
    ins = [b.add_value(f"x{i}", dtype, s, main, ValueKind.INPUT) for i, s in enumerate(inputs)]
    op = b.add_op("op", domain, op_type, 21, main, ins, attrs=attrs)
    outs = [
        b.add_value(f"y{i}", dtype, s, main, ValueKind.RESULT, producer=op, slot=i)
        for i, s in enumerate(outputs)
    ]
    b.close_op(op, outs)
    b.close_scope(main, ins, outs)
    if dtype is F32:
        b.add_typevar(op, main, "T", [Use(op, i, main) for i in range(len(ins))], outs, True)
        for value in ins:
            b.add_typevar(None, main, f"input:x{value}", [], [value], True)
        for slot in range(len(outs)):
            b.add_typevar(None, main, f"output:y{slot}", [Use(None, slot, main)], [], True)
    return b.freeze()


CASES = [
    ("MatMul", [(2, 3, 4), (4, 5)], [(2, 3, 5)], {}, 2 * 3 * 4 * 5),
    ("MatMul", [(1, 3, 4), (7, 4, 5)], [None], {}, 7 * 3 * 4 * 5),
    ("MatMul", [(4,), (4, 5)], [(5,)], {}, 20),
    ("MatMul", [(3, 4), (4,)], [(3,)], {}, 12),
    ("MatMul", [None, (4, 5)], [(9, 5)], {}, 9 * 5 * 4),
    ("Gemm", [(4, 3), (5, 4), (5,)], [(3, 5)], {"transA": 1, "transB": 1}, 3 * 4 * 5),
    ("Conv", [(1, 8, 10, 10), (16, 4, 3, 3)], [(1, 16, 8, 8)], {"group": 2}, 16 * 64 * 4 * 9),
    ("Conv", [(1, 8, 10, 10), (16, 8, 1, 1)], [None], {"strides": (2, 2)}, 16 * 25 * 8),
    ("ConvTranspose", [(1, 8, 5, 5), (8, 3, 2, 2)], [(1, 3, 10, 10)], {}, 8 * 25 * 3 * 4),
    ("LSTM", [(7, 2, 5), (1, 12, 5), (1, 12, 3)], [(7, 1, 2, 3)], {}, 14 * (60 + 36)),
    ("GRU", [(7, 2, 5), (2, 9, 5), (2, 9, 3)], [(7, 2, 2, 3)], {}, 14 * (90 + 54)),
    ("Attention", [(2, 4, 6, 8), (2, 4, 9, 8), (2, 4, 9, 8)], [(2, 4, 6, 8)], {}, 2 * 4 * 6 * 9 * 16),
    ("Einsum", [(2, 3, 4), (2, 4, 5)], [(2, 3, 5)], {"equation": "bij, bjk -> bik"}, 120),
    ("Einsum", [(6, 2, 3, 4), (4, 5)], [None], {"equation": "...j,jk->...k"}, 36 * 4 * 5),
    ("Add", [(2, 3), (2, 3)], [(2, 3)], {}, 0),
]


@pytest.mark.parametrize(("op_type", "inputs", "outputs", "attrs", "expected"), CASES)
def test_macs(
    op_type: str, inputs: list[Shape], outputs: list[Shape], attrs: dict[str, object], expected: int
) -> None:
    graph = one_op(op_type, inputs, outputs, attrs=attrs)
    assert macs(graph, {}).get(0, 0) == expected


@pytest.mark.parametrize(
    ("op_type", "inputs", "outputs", "attrs", "expected"),
    [
        ("FusedMatMul", [(2, 4, 3), (2, 4, 5)], [(2, 3, 5)], {"transA": 1}, 120),
        ("MatMulNBits", [(2, 8), (5, 1, 4)], [(2, 5)], {"K": 8, "N": 5}, 80),
        ("FusedConv", [(1, 2, 4, 4), (3, 2, 1, 1)], [(1, 3, 4, 4)], {}, 96),
        ("Attention", [(1, 4, 6), (6, 18)], [(1, 4, 6)], {}, 4 * 6 * 18 + 2 * 16 * 6),
        ("MultiHeadAttention", [(1, 4, 6), (1, 5, 6), (1, 5, 6)], [(1, 4, 6)], {}, 4 * 5 * 12),
    ],
)
def test_macs_of_contrib_operators(
    op_type: str, inputs: list[Shape], outputs: list[Shape], attrs: dict[str, object], expected: int
) -> None:
    graph = one_op(op_type, inputs, outputs, attrs=attrs, domain="com.microsoft")
    assert macs(graph, {}) == {0: expected}


def test_macs_leave_integer_products_and_foreign_domains_out() -> None:
    assert macs(one_op("MatMul", [(2, 3), (3, 4)], [(2, 4)], dtype=DataType.INT32), {}) == {}
    assert macs(one_op("MatMul", [(2, 3), (3, 4)], [(2, 4)], domain="my.domain"), {}) == {}


def test_observed_shapes_win_over_declared_ones_and_defaults() -> None:
    graph = one_op("MatMul", [("batch", "seq", 4), (4, 5)], [None])
    assert macs(graph, {}) == {0: 1 * 128 * 4 * 5}  # batch 1, other unknown dimensions 128
    assert macs(graph, {0: (3, 7, 4)}) == {0: 3 * 7 * 4 * 5}


def test_function_bodies_count_once_per_call() -> None:
    b = GraphBuilder("f", "0" * 64, {"": 21})
    main = b.add_scope(ScopeKind.MAIN, "main")
    body = b.add_scope(ScopeKind.FUNCTION, "f")
    x = b.add_value("x", F32, (2, 3), main, ValueKind.INPUT)
    a = b.add_value("a", F32, (2, 3), body, ValueKind.INPUT)
    w = b.add_value("w", F32, (3, 3), body, ValueKind.CONSTANT)
    inner = b.add_op("m", "", "MatMul", 21, body, [a, w])
    c = b.add_value("c", F32, (2, 3), body, ValueKind.RESULT, producer=inner)
    b.close_op(inner, [c])
    b.close_scope(body, [a], [c])
    uses, results, current = [], [], x
    for i in range(2):
        call = b.add_op(f"call{i}", "local", "f", 1, main, [current])
        current = b.add_value(f"y{i}", F32, (2, 3), main, ValueKind.RESULT, producer=call)
        b.close_op(call, [current], callee=body)
        uses.append(Use(call, 0, main))
        results.append(current)
    b.close_scope(main, [x], [current])
    b.add_typevar(None, main, "input:x", [], [x], True)
    b.add_typevar(None, body, "input:a", uses, [a], True)
    b.add_typevar(inner, body, "T", [Use(inner, 0, body), Use(inner, 1, body)], [c], True)
    b.add_typevar(None, body, "output:c", [Use(None, 0, body)], results, True)
    b.add_typevar(None, main, "output:y", [Use(None, 0, main)], [], True)
    graph = b.freeze()
    assert macs(graph, {}) == {inner: 2 * 2 * 3 * 3}
    costs = estimate_costs(graph, {}, load_device("t4"))
    assert costs.launches == 2 * 5_000_000  # the body twice, the calls themselves nothing


def test_roofline_takes_the_longer_of_arithmetic_and_traffic() -> None:
    t4 = load_device("t4")
    big = estimate_costs(one_op("MatMul", [(4096, 4096), (4096, 4096)], [(4096, 4096)]), {}, t4)
    flops = 2 * 4096**3
    assert big.fp32[0] == pytest.approx(flops / 8.1, abs=1)
    assert big.fp16[0] == pytest.approx(flops / 65, abs=1)
    add = estimate_costs(one_op("Add", [(1000, 1000)] * 2, [(1000, 1000)]), {}, t4)
    assert add.fp32[0] == 3 * 4 * 10**6 * 1000 // 320
    assert add.fp16[0] * 2 == add.fp32[0]
    # a cast reads 4 and writes 2 bytes per element, and is one more kernel
    assert add.casts[0] == 5_000_000 + 6 * 10**6 * 1000 // 320


def test_tf32_peak_only_where_the_device_has_it() -> None:
    graph = one_op("MatMul", [(4096, 4096), (4096, 4096)], [(4096, 4096)])
    a100, t4 = load_device("a100"), load_device("t4")
    assert estimate_costs(graph, {}, a100, tf32=True).fp32[0] * 7 < estimate_costs(graph, {}, a100).fp32[0]
    assert estimate_costs(graph, {}, t4, tf32=True) == estimate_costs(graph, {}, t4)


def test_metadata_only_operators_are_free_and_gather_reads_what_it_returns() -> None:
    t4 = load_device("t4")
    reshape = estimate_costs(one_op("Reshape", [(8, 8)], [(64,)]), {}, t4)
    assert (reshape.fp32[0], reshape.fp16[0], reshape.launches) == (0, 0, 0)
    gather = estimate_costs(one_op("Gather", [(10**6, 16)], [(3, 16)]), {}, t4)
    assert gather.fp32[0] == 2 * 48 * 4 * 1000 // 320


def test_every_device_file_is_complete() -> None:
    assert {"t4", "a10", "a100", "l4", "h100", "rtx4090"} <= set(device_names())
    for name in device_names():
        device = load_device(name)
        assert device.id == name
        assert device.source
        assert device.fp16_tflops > device.fp32_tflops


def test_bad_devices(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'h100'"):
        load_device("h10")
    mine = tmp_path / "mine.toml"
    with pytest.raises(UsageError, match="cannot read"):
        load_device(str(mine))
    mine.write_text("fp32_tflops = [")
    with pytest.raises(RuleError, match="TOML"):
        load_device(str(mine))
    mine.write_text("fp32_tflops = -1")
    with pytest.raises(RuleError, match="positive"):
        load_device(str(mine))


def test_sizes_beyond_floats_have_prices() -> None:
    """Declared sizes can be any number; prices are made with floats."""
    graph = one_op("Exp", [(2**62,) * 20], [(2**62,) * 20])
    costs = estimate_costs(graph, {}, load_device("a10"))
    assert max(costs.fp32) > max(costs.fp16) > 0
