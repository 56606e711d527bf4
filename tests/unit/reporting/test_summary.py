from __future__ import annotations

import numpy as np

from fp16conv.graph import DataType, GraphBuilder, ScopeKind, Use, ValueKind
from fp16conv.planning.devices import load_device
from fp16conv.planning.plan import Cast, Decision, PrecisionPlan
from fp16conv.reporting.summary import describe_model, read_prediction, read_size, summarize_decisions
from fp16conv.rulebook.types import Authority, Reason, Verdict


class _Array:
    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    @property
    def nbytes(self) -> int:
        return self._array.nbytes

    @property
    def size(self) -> int:
        return self._array.size

    def numpy(self) -> np.ndarray:
        return self._array


def _decision(index: int, op: int | None, kind: str, half: bool, *reasons: Reason) -> Decision:
    dtype = DataType.FLOAT16 if half else DataType.FLOAT
    verdict = Verdict.ALLOW if half else Verdict.DENY
    return Decision(index, op, f"/{kind}_{op}", kind, "main", "T", dtype, verdict, reasons)


EXP = Reason("exp-overflow", "exp(12.0) is beyond 65504", Authority.EVIDENCE)
USER = Reason("keep-fp32", "asked for by --keep-fp32", Authority.COMMAND_LINE)
PLAN = PrecisionPlan(
    "m",
    "r",
    {},
    (
        _decision(0, None, "", False, USER),  # a graph input: no operator
        _decision(1, 0, "MatMul", True),
        _decision(2, 1, "Exp", False, EXP, USER),
        _decision(3, 2, "Exp", False, EXP),
        _decision(4, 3, "Softmax", False, USER),
        _decision(5, 4, "LayerNormalization", True),
        _decision(6, 4, "LayerNormalization", False),
    ),
    (Cast(0, "x", DataType.FLOAT16, (Use(0, 0, 0),)),),
    {7: EXP},
    predicted={
        "macs": 100.0,
        "macs_fp16_share": 0.9,
        "time_fp32_us": 1500.0,
        "time_plan_us": 1000.0,
        "weight_bytes_before": 800.0,
        "weight_bytes_after": 500.0,
    },
)


def test_operators_are_counted_once_and_grouped_by_their_strongest_reason() -> None:
    found = summarize_decisions(PLAN, macs={0: 90, 3: 10})
    assert (found.fp16, found.fp32, found.mixed) == (1, 3, 1)
    assert found.casts == 1
    assert found.saturated == 1
    assert found.macs_share == 0.9
    assert found.verdicts == {"allow": 2, "deny": 5}
    assert [(g.rule, g.authority, g.count) for g in found.kept] == [
        ("exp-overflow", "evidence", 2),
        ("keep-fp32", "command line", 1),
        ("planner", "built-in", 1),
    ]
    first = found.kept[0]
    assert first.op_types == {"Exp": 2}
    assert first.examples == ("/Exp_1", "/Exp_2")
    assert first.text == EXP.text
    assert found.kept[1].macs_share == 0.1


def test_an_operator_that_might_go_fp16_is_kept_by_the_planner_not_by_its_class() -> None:
    moves = Reason("data-movement", "Moves data")
    planner = Reason("planner", "FP32: FP16 here would add 1 cast, more than it saves")
    decision = Decision(0, 0, "r", "Reshape", "main", "T", DataType.FLOAT, Verdict.FOLLOW, (moves, planner))
    (group,) = summarize_decisions(PrecisionPlan("m", "r", {}, (decision,), ())).kept
    assert (group.rule, group.text) == ("planner", planner.text)


def test_a_share_of_no_macs_is_unknown_not_zero() -> None:
    plan = PrecisionPlan("m", "r", {}, PLAN.decisions, (), predicted={"macs": 0.0, "macs_fp16_share": 0.0})
    assert summarize_decisions(plan).macs_share is None


def test_size_and_prediction_are_the_planner_s() -> None:
    size = read_size(PLAN)
    assert (size.weights_before, size.weights_after, size.saving) == (800, 500, 0.375)
    prediction = read_prediction(PLAN, load_device("t4"))
    assert prediction is not None
    assert prediction.device == "t4"
    assert prediction.fp32_seconds == 0.0015
    assert prediction.speedup == 1.5
    assert read_prediction(PrecisionPlan("m", "r", {}, (), ()), load_device("t4")) is None


def test_describe_model_lists_ports_types_and_weights() -> None:
    builder = GraphBuilder("net.onnx", "d" * 64, {"": 21})
    main = builder.add_scope(ScopeKind.MAIN, "main")
    x = builder.add_value("x", DataType.FLOAT, (1, "n"), main, ValueKind.INPUT)
    w = builder.add_value(
        "w", DataType.FLOAT, (4,), main, ValueKind.CONSTANT, tensor=_Array(np.ones(4, np.float32))
    )
    add = builder.add_op("", "", "Add", 14, main, [x, w])
    y = builder.add_value("y", DataType.FLOAT, None, main, ValueKind.RESULT, producer=add)
    builder.close_op(add, [y])
    builder.close_scope(main, [x], [y])
    builder.add_typevar(None, main, "input:x", [], [x], True)
    builder.add_typevar(None, main, "output:y", [Use(None, 0, main)], [], True)
    builder.add_typevar(add, main, "T", [Use(add, 0, main), Use(add, 1, main)], [y], True)
    facts = describe_model(builder.freeze(), ir_version=9, producer="p", macs=3)
    assert (facts.path, facts.ops, facts.weights, facts.macs) == ("net.onnx", 1, 16, 3)
    assert facts.op_types == {"Add": 1}
    assert [(p.name, p.dtype, p.shape) for p in facts.inputs] == [("x", "float", (1, "n"))]
    assert [(p.name, p.shape) for p in facts.outputs] == [("y", None)]
