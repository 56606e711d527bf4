"""Plans of small models, worked out by hand, and the reasons given for them."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from fp16conv.errors import PlanError, UsageError
from fp16conv.graph import Container, DataType, GraphBuilder, ModelGraph, ScopeKind, Use, ValueKind
from fp16conv.planning import PrecisionPlan, estimate_costs, load_device, make_plan, replan_casts
from fp16conv.planning.planner import PLANNER
from fp16conv.rulebook.types import Authority, Group, Judgement, Reason, Verdict, Verdicts

F32, F16 = DataType.FLOAT, DataType.FLOAT16
SIDE = 1024


class Weight:
    """A constant of ones."""

    def __init__(self, *shape: int) -> None:
        self._data = np.ones(shape, dtype=np.float32)

    nbytes = property(lambda self: self._data.nbytes)
    size = property(lambda self: self._data.size)

    def numpy(self) -> np.ndarray:
        return self._data


class Net:
    """A chain builder: every operator has one type variable; inputs are named."""

    def __init__(self) -> None:
        self.b = GraphBuilder("net", "d" * 64, {"": 21})
        self.main = self.b.add_scope(ScopeKind.MAIN, "main")
        self.values: dict[str, int] = {}
        self.verdicts: list[Verdict] = []
        self.values["x"] = self.b.add_value("x", F32, (SIDE, SIDE), self.main, ValueKind.INPUT)
        self._typevar(None, "input:x", [], [self.values["x"]], Verdict.DENY)

    def _typevar(
        self, op: int | None, symbol: str, uses: list[Use], defs: list[int], verdict: Verdict
    ) -> None:
        self.b.add_typevar(op, self.main, symbol, uses, defs, verdict is not Verdict.NEVER)
        self.verdicts.append(verdict)

    def weight(self, name: str) -> None:
        self.values[name] = self.b.add_value(
            name, F32, (SIDE, SIDE), self.main, ValueKind.CONSTANT, tensor=Weight(SIDE, SIDE)
        )

    def op(
        self, name: str, op_type: str, verdict: str, *inputs: str, container: Container = Container.TENSOR
    ) -> None:
        ids = [self.values[i] for i in inputs]
        op = self.b.add_op(name, "", op_type, 21, self.main, ids)
        y = self.b.add_value(
            name, F32, (SIDE, SIDE), self.main, ValueKind.RESULT, producer=op, container=container
        )
        self.values[name] = y
        self.b.close_op(op, [y])
        self._typevar(op, "T", [Use(op, i, self.main) for i in range(len(ids))], [y], Verdict(verdict))

    def done(self, *outputs: str) -> ModelGraph:
        self.b.close_scope(self.main, [self.values["x"]], [self.values[o] for o in outputs])
        for slot, name in enumerate(outputs):
            self._typevar(None, f"output:{name}", [Use(None, slot, self.main)], [], Verdict.DENY)
        return self.b.freeze()


def plan_of(net: Net, graph: ModelGraph, *groups: Group, **options: object) -> PrecisionPlan:
    judgements = tuple(Judgement(v, (Reason("rule", f"it is {v}"),)) for v in net.verdicts)
    costs = estimate_costs(graph, {}, load_device("t4"))
    return make_plan(graph, Verdicts(judgements, groups), costs, rules_digest="r", **options)  # type: ignore[arg-type]


def labels(plan: PrecisionPlan) -> dict[str, str]:
    return {d.label: "16" if d.dtype is F16 else "32" for d in plan.decisions if d.op is not None}


def planner_text(plan: PrecisionPlan, label: str) -> str:
    (decision,) = (d for d in plan.decisions if d.label == label and d.op is not None)
    return next((r.text for r in decision.reasons if r.rule == PLANNER), "")


def test_infer_between_allow_is_fp16_and_says_what_it_saves() -> None:
    net = Net()
    net.weight("w")
    net.op("a", "MatMul", "allow", "x", "w")
    net.op("b", "Add", "infer", "a")
    net.op("c", "MatMul", "allow", "b", "w")
    plan = plan_of(net, net.done("c"))
    assert labels(plan) == {"a": "16", "b": "16", "c": "16"}
    assert [(c.value_name, c.to) for c in plan.casts] == [("x", F16), ("c", F32)]
    assert "saves 2 casts" in planner_text(plan, "b")
    assert planner_text(plan, "a") == ""  # its verdict says it all
    assert plan.predicted["macs_fp16_share"] == 1.0
    assert plan.predicted["weight_bytes_before"] == 4 * SIDE**2
    assert plan.predicted["weight_bytes_after"] == 2 * SIDE**2
    assert plan.predicted["time_plan_us"] < plan.predicted["time_fp32_us"]
    assert plan.predicted["casts"] == 2.0


def test_head_after_the_last_product_is_fp16_because_it_moves_fewer_bytes() -> None:
    net = Net()
    net.op("a", "MatMul", "allow", "x")
    net.op("head", "Add", "infer", "a")
    plan = plan_of(net, net.done("head"))
    assert labels(plan) == {"a": "16", "head": "16"}
    assert [c.value_name for c in plan.casts] == ["x", "head"]
    assert "half the bytes" in planner_text(plan, "head")


def test_a_tie_stays_fp32() -> None:
    net = Net()
    net.op("a", "MatMul", "allow", "x")
    net.op("view", "Reshape", "follow", "a")  # free in either precision
    plan = plan_of(net, net.done("view"))
    assert labels(plan) == {"a": "16", "view": "32"}
    assert "save nothing" in planner_text(plan, "view") or "cost more" in planner_text(plan, "view")


def test_a_region_without_compute_stays_fp32() -> None:
    net = Net()
    for i in range(20):
        net.op(f"e{i}", "Add", "infer", "x" if i == 0 else f"e{i - 1}")
    net.op("d", "Exp", "deny", "e19")
    net.op("a", "MatMul", "allow", "d")
    plan = plan_of(net, net.done("a"))
    assert {v for k, v in labels(plan).items() if k.startswith("e")} == {"32"}
    assert "no operator that gains" in planner_text(plan, "e3")
    assert [c.value_name for c in plan.casts] == ["d", "a"]


def test_one_cast_serves_all_readers() -> None:
    net = Net()
    for name in "abc":
        net.op(name, "MatMul", "allow", "x")
    net.op("d", "Exp", "deny", "a", "b")
    net.op("e", "Exp", "deny", "a")
    plan = plan_of(net, net.done("d", "e", "c"))
    casts = {c.value_name: c for c in plan.casts}
    assert sorted(casts) == ["a", "b", "c", "x"]
    assert len(casts["x"].uses) == 3
    assert [use.op for use in casts["a"].uses] == [3, 4]


def test_small_island_between_denied_neighbours_stays_fp32() -> None:
    net = Net()
    net.op("a", "MatMul", "allow", "x")
    net.op("d", "Exp", "deny", "a")
    net.op("i", "Add", "infer", "d")
    net.op("d2", "Exp", "deny", "i")
    net.op("m", "MatMul", "allow", "i")
    plan = plan_of(net, net.done("d2", "m"))
    assert labels(plan)["i"] == "32"
    assert "would add 1 cast" in planner_text(plan, "i")


def test_deny_wins_over_allow_in_a_group_and_the_reason_leads() -> None:
    net = Net()
    net.op("a", "MatMul", "allow", "x")
    net.op("b", "Exp", "deny", "a")
    group = Group((1, 2), Reason("kernel", "one kernel has no mixed form"))
    plan = plan_of(net, net.done("b"), group)
    assert labels(plan) == {"a": "32", "b": "32"}
    first = plan.decisions[1].reasons[0]
    assert first.rule == PLANNER
    assert "as 'b' (T)" in first.text
    assert "no mixed form" in first.text
    assert plan.casts == ()


def test_what_the_command_line_forces_leaves_a_pattern() -> None:
    net = Net()
    net.op("a", "Mul", "allow", "x")
    net.op("b", "Exp", "deny", "a")
    net.op("c", "Add", "infer", "b")
    graph = net.done("c")
    judgements = [Judgement(v, ()) for v in net.verdicts]
    judgements[1] = Judgement(Verdict.ALLOW, (Reason("force-fp16", "asked for", Authority.COMMAND_LINE),))
    group = Group((1, 2, 3), Reason("pattern", "one pattern"))
    verdicts = Verdicts(tuple(judgements), (group,))
    costs = estimate_costs(graph, {}, load_device("t4"))
    plan = make_plan(graph, verdicts, costs, rules_digest="r")
    assert labels(plan) == {"a": "16", "b": "32", "c": "32"}


def test_group_takes_infer_along_with_allow() -> None:
    net = Net()
    net.op("a", "MatMul", "allow", "x")
    net.op("d", "Exp", "deny", "a")
    net.op("i", "Add", "infer", "d")
    group = Group((1, 3), Reason("pattern", "one pattern"))
    plan = plan_of(net, net.done("i"), group)
    assert labels(plan) == {"a": "16", "d": "32", "i": "16"}
    assert "FP16, as 'a'" in planner_text(plan, "i")


def test_sequences_share_one_precision() -> None:
    net = Net()
    net.op("a", "MatMul", "allow", "x")
    net.op("s", "SequenceConstruct", "follow", "a", container=Container.SEQUENCE)
    net.op("t", "SequenceAt", "deny", "s")
    graph = net.done("t")
    plan = plan_of(net, graph)
    assert labels(plan) == {"a": "16", "s": "32", "t": "32"}
    assert [c.value_name for c in plan.casts] == ["x", "a"]
    torn = {**plan.dtypes, 2: F16}
    with pytest.raises(PlanError, match="'s' is a sequence and cannot be cast"):
        replan_casts(graph, torn)


def test_schema_without_fp16_beats_allow() -> None:
    net = Net()
    net.op("a", "MatMul", "never", "x")
    net.verdicts[1] = Verdict.ALLOW
    plan = plan_of(net, net.done("a"))
    assert labels(plan) == {"a": "32"}
    assert "schema admits no" in plan.decisions[1].reasons[0].text


def test_error_moves_an_allow_operator_to_fp32_only_when_asked() -> None:
    net = Net()
    net.op("a", "MatMul", "allow", "x")
    net.op("b", "MatMul", "allow", "a")
    graph = net.done("b")
    hard = plan_of(net, graph, errors={1: 1.0}, lam=1e12)
    assert labels(hard) == {"a": "16", "b": "16"}
    soft = plan_of(net, graph, errors={1: 1.0}, lam=1e12, soft_allow=True)
    assert labels(soft) == {"a": "32", "b": "16"}
    assert "its error" in soft.decisions[1].reasons[0].text
    never = plan_of(net, graph, errors={1: float("inf")}, soft_allow=True)
    assert labels(never) == {"a": "32", "b": "16"}


def test_what_the_command_line_forces_stays_fp16() -> None:
    net = Net()
    net.op("a", "MatMul", "allow", "x")
    graph = net.done("a")
    forced = (Reason("force-fp16", "asked for", Authority.COMMAND_LINE),)
    judgements = (*(Judgement(v, ()) for v in net.verdicts[:1]), Judgement(Verdict.ALLOW, forced))
    verdicts = Verdicts((*judgements, Judgement(Verdict.DENY, ())))
    costs = estimate_costs(graph, {}, load_device("t4"))
    plan = make_plan(graph, verdicts, costs, rules_digest="r", errors={1: 1.0}, lam=1e12, soft_allow=True)
    assert labels(plan) == {"a": "16"}


def test_a_constant_read_in_both_precisions_is_kept_twice() -> None:
    net = Net()
    net.weight("w")
    net.op("a", "MatMul", "allow", "x", "w")
    net.op("d", "Exp", "deny", "a", "w")
    graph = net.done("d")
    plan = plan_of(net, graph)
    assert plan.predicted["weight_bytes_after"] == 6 * SIDE**2
    assert all(cast.value_name != "w" for cast in plan.casts)


def test_saturated_constants_only_where_fp16_reads_them() -> None:
    net = Net()
    net.weight("mask16")
    net.weight("mask32")
    net.op("a", "MatMul", "allow", "x", "mask16")
    net.op("d", "Exp", "deny", "a", "mask32")
    graph = net.done("d")
    why = Reason("mask", "acts as infinity")
    verdicts = Verdicts(
        tuple(Judgement(v, ()) for v in net.verdicts),
        saturated={net.values["mask16"]: why, net.values["mask32"]: why},
    )
    plan = make_plan(graph, verdicts, estimate_costs(graph, {}, load_device("t4")), rules_digest="r")
    assert plan.saturated == {net.values["mask16"]: why}


def test_bad_arguments() -> None:
    net = Net()
    net.op("a", "MatMul", "allow", "x")
    graph = net.done("a")
    with pytest.raises(UsageError, match="lambda"):
        plan_of(net, graph, lam=-1.0)
    with pytest.raises(UsageError, match="error of type variable 1"):
        plan_of(net, graph, errors={1: float("nan")})
    with pytest.raises(PlanError, match="JSON"):
        plan_of(net, graph, options={"a": object()})
    net.verdicts.pop()
    with pytest.raises(PlanError, match="judgements"):
        plan_of(net, graph)


def test_plan_does_not_depend_on_group_order() -> None:
    net = Net()
    for i in range(8):
        net.op(f"a{i}", "MatMul", "allow" if i % 3 == 0 else "infer", "x" if i == 0 else f"a{i - 1}")
    graph = net.done("a7")
    groups = [Group((i, i + 1), Reason("g", str(i))) for i in range(2, 5)]
    first = plan_of(net, graph, *groups)
    random.Random(0).shuffle(groups)
    second = plan_of(net, graph, *groups)
    assert first.dtypes == second.dtypes
    assert dataclasses.replace(first, decisions=()) == dataclasses.replace(second, decisions=())
