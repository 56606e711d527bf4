"""The cut against exhaustive enumeration and against two published heuristics, on random graphs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from fp16conv.graph import Container, DataType, GraphBuilder, ModelGraph, ScopeKind, Use, ValueKind
from fp16conv.planning import CostModel, assignment_cost, load_device, make_plan, replan_casts
from fp16conv.planning.cut import Charge, build_problem
from fp16conv.rulebook.types import Group, Judgement, Reason, Verdict, Verdicts

F32, F16 = DataType.FLOAT, DataType.FLOAT16
Dtypes = dict[int, DataType]


def random_graph(rng: random.Random, ops: int, *, rare: bool = True) -> ModelGraph:
    """Operators with one or two type variables, shared values, constants, and an If-like subgraph."""
    b = GraphBuilder("random", "0" * 64, {"": 21})
    main = b.add_scope(ScopeKind.MAIN, "main")
    x = b.add_value("x", F32, (4,), main, ValueKind.INPUT)
    b.add_typevar(None, main, "input:x", [], [x], True)
    visible, sequences, number = [x], [], 0

    def add(scope: int, pool: list[int]) -> int:
        nonlocal number
        number += 1
        arity = rng.randint(1, 3)
        inputs = [rng.choice(pool[-5:]) for _ in range(arity)]
        if rng.random() < 0.2:
            inputs.append(b.add_value(f"w{number}", F32, (4,), scope, ValueKind.CONSTANT))
        if sequences and rng.random() < 0.3:
            inputs.append(rng.choice(sequences))
        op = b.add_op(f"op{number}", "", rng.choice(["Add", "Cast", "MatMul"]), 21, scope, inputs)
        as_sequence = rare and rng.random() < 0.1
        container = Container.SEQUENCE if as_sequence else Container.TENSOR
        y = b.add_value(f"y{number}", F32, (4,), scope, ValueKind.RESULT, producer=op, container=container)
        outputs = [y]
        b.close_op(op, outputs)
        uses = [Use(op, slot, scope) for slot in range(len(inputs))]
        admits = rng.random() > 0.1
        if rng.random() < 0.3 and len(uses) > 1:
            b.add_typevar(op, scope, "T", uses[:1], outputs, admits)
            b.add_typevar(op, scope, "T1", uses[1:], [], True)
        elif rng.random() < 0.2:  # like Cast: the output is independent of the input
            b.add_typevar(op, scope, "T1", uses, [], True)
            b.add_typevar(op, scope, "T2", [], outputs, admits)
        else:
            b.add_typevar(op, scope, "T", uses, outputs, admits)
        (sequences if as_sequence else pool).append(y)
        return y

    for _ in range(ops):
        if rare and rng.random() < 0.15:
            owner = b.add_op(f"if{number}", "", "If", 21, main, [])
            branches, results = {}, []
            for name in ("then_branch", "else_branch"):
                scope = b.add_scope(ScopeKind.SUBGRAPH, name, main, owner)
                inner = list(visible)
                for _ in range(rng.randint(1, 2)):
                    add(scope, inner)
                result = inner[-1]
                b.close_scope(scope, [], [result])
                branches[name] = scope
                results.append(Use(None, 0, scope))
            y = b.add_value(f"if{number}_y", F32, (4,), main, ValueKind.RESULT, producer=owner)
            b.close_op(owner, [y], subscopes=branches)
            b.add_typevar(owner, main, "V", results, [y], True)
            visible.append(y)
        else:
            add(main, visible)
    y = visible[-1]
    b.close_scope(main, [x], [y])
    b.add_typevar(None, main, "output:y", [Use(None, 0, main)], [], True)
    return b.freeze()


def random_verdicts(rng: random.Random, graph: ModelGraph, *, groups: bool = True) -> Verdicts:
    kinds = [Verdict.ALLOW, Verdict.INFER, Verdict.INFER, Verdict.FOLLOW, Verdict.FOLLOW, Verdict.DENY]
    judgements = []
    for variable in graph.typevars:
        if variable.op is None:
            verdict = Verdict.DENY
        else:
            verdict = rng.choice(kinds) if variable.admits_fp16 else Verdict.NEVER
        judgements.append(Judgement(verdict, (Reason("rule", "why"),)))
    found = []
    if groups and rng.random() < 0.4 and len(graph.typevars) > 4:
        members = tuple(rng.sample(range(len(graph.typevars)), 2))
        found.append(Group(members, Reason("kernel", "one kernel")))
    return Verdicts(tuple(judgements), tuple(found))


def random_costs(rng: random.Random, graph: ModelGraph, biggest: int) -> CostModel:
    """Small integers, so that ties are common."""
    n, m = len(graph.typevars), len(graph.values)
    return CostModel(
        load_device("t4"),
        tuple(rng.randint(0, biggest) for _ in range(n)),
        tuple(rng.randint(0, biggest) for _ in range(n)),
        tuple(rng.randint(0, biggest) for _ in range(m)),
        {},
        0,
    )


def enumerate_best(
    graph: ModelGraph,
    verdicts: Verdicts,
    costs: CostModel,
    penalty: list[int],
    charges: Sequence[Charge] = (),
) -> Dtypes:
    """Cheapest feasible assignment by trying all; ties by the fewest FP16 variables."""
    problem = build_problem(graph, verdicts, costs)
    free = [i for i, dtype in enumerate(problem.fixed) if dtype is None]
    best: tuple[int, int] | None = None
    winners: list[Dtypes] = []
    for choice in itertools.product((F32, F16), repeat=len(free)):
        label = [dtype or F32 for dtype in problem.fixed]
        for index, dtype in zip(free, choice, strict=True):
            label[index] = dtype
        dtypes = {v.id: label[problem.class_of[v.id]] for v in graph.typevars}
        cost = assignment_cost(graph, costs, dtypes)
        cost += sum(penalty[v] for v in dtypes if dtypes[v] is F16)
        cost += sum(2 * round(c.error) for c in charges if any(dtypes[v] is F16 for v in c.typevars))
        key = (cost, sum(dtype is F16 for dtype in dtypes.values()))
        if best is None or key < best:
            best, winners = key, [dtypes]
        elif key == best:
            winners.append(dtypes)
    assert len(winners) == 1, "the smallest source side is unique"
    return winners[0]


@pytest.mark.parametrize("seed", range(150))
def test_cut_equals_exhaustive_enumeration(seed: int) -> None:
    rng = random.Random(seed)
    graph = random_graph(rng, rng.randint(3, 7))
    while len(graph.typevars) > 16:  # 2^16 assignments are enough
        graph = random_graph(rng, rng.randint(3, 6))
    verdicts = random_verdicts(rng, graph)
    costs = random_costs(rng, graph, rng.choice([2, 5, 50]))
    errors = {v.id: float(rng.randint(0, 3)) for v in graph.typevars} if seed % 2 else {}
    penalty = [2 * round(errors.get(v.id, 0.0)) for v in graph.typevars]
    plan = make_plan(graph, verdicts, costs, rules_digest="r", errors=errors, lam=2.0)
    assert plan.dtypes == enumerate_best(graph, verdicts, costs, penalty)


@pytest.mark.parametrize("seed", range(60))
def test_cut_with_shared_charges_equals_exhaustive_enumeration(seed: int) -> None:
    rng = random.Random(3000 + seed)
    graph = random_graph(rng, rng.randint(3, 7))
    while len(graph.typevars) > 16:
        graph = random_graph(rng, rng.randint(3, 6))
    verdicts = random_verdicts(rng, graph)
    costs = random_costs(rng, graph, rng.choice([2, 5, 50]))
    charges = [
        Charge(tuple(rng.sample(range(len(graph.typevars)), rng.randint(1, 3))), float(rng.randint(0, 9)))
        for _ in range(rng.randint(1, 6))
    ]
    plan = make_plan(graph, verdicts, costs, rules_digest="r", charges=charges, lam=2.0)
    assert plan.dtypes == enumerate_best(graph, verdicts, costs, [0] * len(graph.typevars), charges)


def test_an_infinite_charge_keeps_all_its_type_variables_in_fp32() -> None:
    rng = random.Random(5)
    graph = random_graph(rng, 12)
    verdicts = Verdicts(tuple(Judgement(Verdict.ALLOW, ()) for _ in graph.typevars))
    costs = random_costs(rng, graph, 9)
    charge = Charge((1, 2), float("inf"))
    plan = make_plan(graph, verdicts, costs, rules_digest="r", charges=[charge], soft_allow=True)
    assert plan.dtypes[1] is plan.dtypes[2] is F32


@pytest.mark.parametrize("seed", range(60))
def test_plan_respects_verdicts_and_equalities(seed: int) -> None:
    rng = random.Random(1000 + seed)
    graph = random_graph(rng, 25)
    verdicts = random_verdicts(rng, graph)
    plan = make_plan(graph, verdicts, random_costs(rng, graph, 9), rules_digest="r")
    dtypes = plan.dtypes
    for variable, judgement in zip(graph.typevars, verdicts.judgements, strict=True):
        if judgement.verdict in (Verdict.DENY, Verdict.NEVER) or not variable.admits_fp16:
            assert dtypes[variable.id] is F32
    for group in verdicts.groups:
        assert len({dtypes[v] for v in group.typevars}) == 1
    assert all(graph.values[cast.value].container is Container.TENSOR for cast in plan.casts)
    assert plan.casts == replan_casts(graph, dtypes)
    assert len({(cast.value, cast.to) for cast in plan.casts}) == len(plan.casts)


@pytest.mark.parametrize("seed", range(40))
def test_fp16_sets_are_nested_in_lambda_and_in_the_deny_set(seed: int) -> None:
    rng = random.Random(2000 + seed)
    graph = random_graph(rng, 25)
    verdicts = random_verdicts(rng, graph)
    costs = random_costs(rng, graph, 9)
    errors = {v.id: rng.random() for v in graph.typevars}
    previous: set[int] | None = None
    for lam in (0.0, 0.5, 2.0, 8.0, 1e6):
        plan = make_plan(graph, verdicts, costs, rules_digest="r", errors=errors, lam=lam, soft_allow=True)
        chosen = {v for v, dtype in plan.dtypes.items() if dtype is F16}
        assert previous is None or chosen <= previous
        previous = chosen
    assert not previous
    before = {v for v, d in make_plan(graph, verdicts, costs, rules_digest="r").dtypes.items() if d is F16}
    judgements = list(verdicts.judgements)
    for variable in rng.sample(range(len(judgements)), 5):
        judgements[variable] = Judgement(Verdict.DENY, ())
    fewer = Verdicts(tuple(judgements), verdicts.groups)
    after = {v for v, d in make_plan(graph, fewer, costs, rules_digest="r").dtypes.items() if d is F16}
    assert after <= before


# Baselines. Both see what the planner sees: the same graph, verdicts, equalities and costs.


def neighbours(graph: ModelGraph) -> tuple[list[set[int]], list[set[int]]]:
    """Successors and predecessors among type variables."""
    after: list[set[int]] = [set() for _ in graph.typevars]
    before: list[set[int]] = [set() for _ in graph.typevars]
    for value in graph.values:
        source = graph.typevar_of_value(value.id)
        for use in graph.consumers(value.id) if source else ():
            reader = graph.typevar_of_use(use)
            if source and reader and reader.id != source.id:
                after[source.id].add(reader.id)
                before[reader.id].add(source.id)
    return after, before


def flood(starts: set[int], steps: list[set[int]], through: set[int]) -> set[int]:
    """Everything in `through` that a path through `through` connects to a start."""
    reached: set[int] = set()
    stack = list(starts)
    while stack:
        for v in steps[stack.pop()]:
            if v in through and v not in reached:
                reached.add(v)
                stack.append(v)
    return reached


def make_equal(graph: ModelGraph, verdicts: Verdicts, costs: CostModel, chosen: set[int]) -> Dtypes:
    """A class of equal variables is FP16 only if all of it was chosen or something pins it so."""
    problem = build_problem(graph, verdicts, costs)
    dtypes: Dtypes = {}
    for members, fixed in zip(problem.members, problem.fixed, strict=True):
        dtype = fixed or (F16 if chosen.issuperset(members) else F32)
        dtypes.update(dict.fromkeys(members, dtype))
    return dtypes


def paint_passes(graph: ModelGraph, verdicts: Verdicts, costs: CostModel) -> Dtypes:
    """TensorFlow grappler's auto_mixed_precision: allow, deny forwards, between allow, clear."""
    after, before = neighbours(graph)

    def of(*kinds: Verdict) -> set[int]:
        return {
            v.id
            for v in graph.typevars
            if verdicts.judgements[v.id].verdict in kinds
            and (v.admits_fp16 or verdicts.judgements[v.id].verdict in (Verdict.DENY, Verdict.NEVER))
        }

    allow, infer, clear = of(Verdict.ALLOW), of(Verdict.INFER), of(Verdict.FOLLOW)
    deny = of(Verdict.DENY, Verdict.NEVER)
    painted = set(allow)
    if not allow:
        return make_equal(graph, verdicts, costs, set())
    upstream_of_numeric = clear & flood(deny | infer, before, clear)
    denied = deny | flood(deny, after, infer | upstream_of_numeric)
    light = (infer | clear) - denied
    painted |= flood(painted, after, light) & flood(painted, before, light)
    clear -= denied
    for _ in graph.typevars:  # to the fix point, both directions
        more = (flood(painted, after, clear) | flood(painted, before, clear)) - painted
        if not more:
            break
        painted |= more
    return make_equal(graph, verdicts, costs, painted)


def greedy_forward(graph: ModelGraph, verdicts: Verdicts, costs: CostModel) -> Dtypes:
    """TVM relay's ToMixedPrecision: a follower is FP16 iff all its (non-constant) inputs are."""
    chosen: set[int] = set()
    for variable in graph.typevars:  # ids are in file order, producers first
        verdict = verdicts.judgements[variable.id].verdict
        if not variable.admits_fp16 or verdict in (Verdict.DENY, Verdict.NEVER):
            continue
        if verdict is Verdict.ALLOW:
            chosen.add(variable.id)
            continue
        sources = set()
        for use in variable.uses:
            value = graph.value_at(use)
            source = graph.typevar_of_value(value.id) if value else None
            if source is not None and source.id != variable.id:
                sources.add(source.id)
        if sources and sources <= chosen:
            chosen.add(variable.id)
    return make_equal(graph, verdicts, costs, chosen)


@pytest.mark.parametrize("seed", range(100))
def test_cut_never_costs_more_than_paint_passes_or_greedy(seed: int) -> None:
    rng = random.Random(3000 + seed)
    graph = random_graph(rng, 40)
    verdicts = random_verdicts(rng, graph)
    costs = random_costs(rng, graph, rng.choice([3, 20]))
    best = assignment_cost(graph, costs, make_plan(graph, verdicts, costs, rules_digest="r").dtypes)
    for baseline in (paint_passes, greedy_forward):
        assert best <= assignment_cost(graph, costs, baseline(graph, verdicts, costs)), baseline.__name__


def test_baselines_are_no_straw_men() -> None:
    """They differ from each other and from the all-FP32 plan, and the cut beats each somewhere."""
    beaten = dict.fromkeys(("paint_passes", "greedy_forward"), 0)
    used = dict.fromkeys(beaten, 0)
    for seed in range(40):
        rng = random.Random(seed)
        graph = random_graph(rng, 30)
        verdicts = random_verdicts(rng, graph)
        costs = random_costs(rng, graph, 9)
        best = assignment_cost(graph, costs, make_plan(graph, verdicts, costs, rules_digest="r").dtypes)
        for baseline in (paint_passes, greedy_forward):
            dtypes = baseline(graph, verdicts, costs)
            forced = sum(j.verdict is Verdict.ALLOW for j in verdicts.judgements)
            used[baseline.__name__] += sum(d is F16 for d in dtypes.values()) > forced
            beaten[baseline.__name__] += best < assignment_cost(graph, costs, dtypes)
    assert min(used.values()) > 10, used
    assert min(beaten.values()) > 10, beaten
