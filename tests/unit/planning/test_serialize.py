"""Plan files: exact round trip, stable bytes, strict reading, replay of edits."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp16conv.errors import PlanError
from fp16conv.graph import DataType, GraphBuilder, ModelGraph, ScopeKind, Use, ValueKind
from fp16conv.planning import Cast, Decision, PrecisionPlan, estimate_costs, load_device, make_plan
from fp16conv.planning.serialize import SCHEMA, bind_plan, dump_plan, load_plan, parse_plan, save_plan
from fp16conv.rulebook.types import Authority, Judgement, Reason, Verdict, Verdicts

F32, F16 = DataType.FLOAT, DataType.FLOAT16


def chain(digest: str = "a" * 64) -> ModelGraph:
    b = GraphBuilder("chain.onnx", digest, {"": 21})
    main = b.add_scope(ScopeKind.MAIN, "main")
    x = b.add_value("x", F32, (512, 512), main, ValueKind.INPUT)
    b.add_typevar(None, main, "input:x", [], [x], True)
    current = x
    for name in ("m0", "m1", "m2"):
        op = b.add_op(name, "", "MatMul", 21, main, [current])
        y = b.add_value(f"{name}_y", F32, (512, 512), main, ValueKind.RESULT, producer=op)
        b.close_op(op, [y])
        b.add_typevar(op, main, "T", [Use(op, 0, main)], [y], name != "m2")
        current = y
    b.close_scope(main, [x], [current])
    b.add_typevar(None, main, "output:y", [Use(None, 0, main)], [], True)
    return b.freeze()


def plan_for(graph: ModelGraph) -> PrecisionPlan:
    why = Reason(
        "gemm", "big: 3.4e38 “quoted” \n é", Authority.PROFILE, {"b": float("inf"), "a": 0.1, "n": 3}
    )
    verdicts = ["deny", "allow", "allow", "never", "deny"]
    judgements = tuple(Judgement(Verdict(v), (why,)) for v in verdicts)
    costs = estimate_costs(graph, {}, load_device("t4"))
    options = {"profile": "balanced", "keep_fp32": ("a", "b"), "nested": {"z": 1, "a": None}}
    plan = make_plan(graph, Verdicts(judgements), costs, rules_digest="b" * 64, options=options)
    return dataclasses.replace(plan, saturated={3: why, 1: why})


def edited(plan: PrecisionPlan, edit: Any) -> str:
    data = json.loads(dump_plan(plan))
    edit(data)
    return json.dumps(data)


def test_round_trip_is_exact_and_bytes_are_stable() -> None:
    graph = chain()
    plan = plan_for(graph)
    text = dump_plan(plan)
    assert parse_plan(text) == plan
    assert dump_plan(parse_plan(text)) == text
    assert bind_plan(parse_plan(text), graph) == plan
    assert json.loads(text)["schema"] == SCHEMA
    # one decision per line: a diff of two plans shows the decisions that differ
    assert sum(line.startswith('{"typevar"') for line in text.splitlines()) == len(graph.typevars)
    shuffled = dataclasses.replace(plan, saturated=dict(reversed(list(plan.saturated.items()))))
    assert dump_plan(shuffled) == text


def test_files(tmp_path: Path) -> None:
    graph = chain()
    plan = plan_for(graph)
    path = tmp_path / "plan.json"
    save_plan(plan, path)
    assert load_plan(path, graph) == plan
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]
    with pytest.raises(PlanError, match="cannot write"):
        save_plan(plan, tmp_path / "missing" / "plan.json")
    with pytest.raises(PlanError, match="cannot read"):
        load_plan(tmp_path / "none.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlanError, match="UTF-8"):
        load_plan(tmp_path / "binary")


def test_an_edited_dtype_is_replayed() -> None:
    graph = chain()
    plan = plan_for(graph)
    assert [c.value_name for c in plan.casts] == ["x", "m1_y"]
    text = dump_plan(plan).replace(
        '"label": "m1", "op_type": "MatMul", "scope": "main", "symbol": "T", "dtype": "float16"',
        '"label": "m1", "op_type": "MatMul", "scope": "main", "symbol": "T", "dtype": "float"',
    )
    replayed = bind_plan(parse_plan(text), graph)
    assert [(c.value_name, c.to) for c in replayed.casts] == [("x", F16), ("m0_y", F32)]
    assert replayed.dtypes[2] is F32


def test_illegal_edit_is_refused() -> None:
    graph = chain()

    def force(data: Any) -> None:
        data["decisions"][3]["dtype"] = "float16"

    with pytest.raises(PlanError, match=r"decisions\[3\] \('m2', T\): FP16 is illegal"):
        bind_plan(parse_plan(edited(plan_for(graph), force)), graph)


def test_plan_of_another_model() -> None:
    plan = plan_for(chain())
    with pytest.raises(PlanError, match="another model"):
        bind_plan(plan, chain("c" * 64))
    with pytest.raises(PlanError, match="4 decisions"):
        bind_plan(dataclasses.replace(plan, decisions=plan.decisions[:-1]), chain())
    swapped = (plan.decisions[1], plan.decisions[0], *plan.decisions[2:])
    with pytest.raises(PlanError, match="does not describe"):
        bind_plan(dataclasses.replace(plan, decisions=swapped), chain())
    with pytest.raises(PlanError, match="saturates value 99"):
        bind_plan(dataclasses.replace(plan, saturated={99: Reason("r", "t")}), chain())


def _set(*path: Any, to: Any) -> Any:
    def edit(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = to

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_set("schema", to="fp16conv.plan/9"), "unsupported plan schema"),
        (_set("extra", to=1), "unknown key 'extra'"),
        (_set("decisions", to={}), "'decisions' must be a list"),
        (_set("decisions", 1, "dtype", to="half"), r"'decisions\[1\].dtype' must be"),
        (_set("decisions", 1, "dtype", to=["float"]), r"'decisions\[1\].dtype' must be"),
        (_set("decisions", 1, "verdict", to="maybe"), "must be one of allow"),
        (_set("decisions", 1, "typevar", to=True), "whole number"),
        (_set("decisions", 1, "typevar", to=-1), "whole number"),
        (_set("decisions", 1, "op", to=1.0), "whole number"),
        (_set("decisions", 1, "label", to=None), "must be a string"),
        (_set("decisions", 1, "reasons", 0, "numbers", to={"a": "1"}), "must be a number"),
        (_set("casts", 0, "uses", to=[1]), r"'casts\[0\].uses\[0\]' must be an object"),
        (_set("predicted", to={"a": 10**400}), "finite"),
        (_set("options", to=[]), "'options' must be an object"),
        (lambda data: data.pop("casts"), "lacks 'casts'"),
    ],
)
def test_malformed_plans_name_the_entry(edit: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        parse_plan(edited(plan_for(chain()), edit))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{",
        "[" * 100_000,
        '{"schema": "fp16conv.plan/1", "schema": "fp16conv.plan/1"}',
        '{"predicted": NaN}',
        '{"a": ' + "9" * 10_000 + "}",
        '{"schema": 3}',
    ],
)
def test_hostile_text_is_a_plan_error(text: str) -> None:
    with pytest.raises(PlanError):
        parse_plan(text)


def test_half_a_surrogate_pair_is_refused() -> None:
    text = edited(plan_for(chain()), _set("decisions", 1, "label", to="\ud800"))
    with pytest.raises(PlanError, match="surrogate"):
        parse_plan(text)


texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
ids = st.integers(0, 2**31 - 1)
reasons = st.builds(
    Reason,
    rule=texts,
    text=texts,
    authority=st.sampled_from(Authority),
    numbers=st.dictionaries(texts, st.floats(allow_nan=False), max_size=3),
)
uses = st.builds(Use, st.none() | ids, ids, ids)
dtypes = st.sampled_from([F32, F16])
plans = st.builds(
    PrecisionPlan,
    model_digest=texts,
    rules_digest=texts,
    options=st.dictionaries(texts, st.none() | st.booleans() | st.integers() | texts, max_size=3),
    decisions=st.lists(
        st.builds(
            Decision,
            typevar=ids,
            op=st.none() | ids,
            label=texts,
            op_type=texts,
            scope=texts,
            symbol=texts,
            dtype=dtypes,
            verdict=st.sampled_from(Verdict),
            reasons=st.lists(reasons, max_size=2).map(tuple),
        ),
        max_size=3,
    ).map(tuple),
    casts=st.lists(
        st.builds(Cast, value=ids, value_name=texts, to=dtypes, uses=st.lists(uses, max_size=3).map(tuple)),
        max_size=3,
    ).map(tuple),
    saturated=st.dictionaries(ids, reasons, max_size=2),
    predicted=st.dictionaries(texts, st.floats(allow_nan=False, allow_infinity=False), max_size=3),
)


@given(plans)
def test_any_plan_round_trips(plan: PrecisionPlan) -> None:
    text = dump_plan(plan)
    assert parse_plan(text) == plan
    assert dump_plan(parse_plan(text)) == text


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_or_device_is_never_replaced_by_the_plan(tmp_path: Path) -> None:
    pipe = tmp_path / "plan.json"
    os.mkfifo(pipe)
    with pytest.raises(PlanError, match="no regular file"):
        save_plan(plan_for(chain()), pipe)
    assert pipe.is_fifo()
