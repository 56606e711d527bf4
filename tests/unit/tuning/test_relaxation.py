"""What measured numbers may overrule, and what they may not."""

from __future__ import annotations

from pathlib import Path

import onnx.parser
import pytest

from fp16conv.frontends.onnx import LoadedModel, from_proto
from fp16conv.graph import Origin, RangeFact
from fp16conv.rulebook.types import Authority, Judgement, Reason, Verdict, Verdicts
from fp16conv.tuning.relaxation import RELAXED, relax


def model() -> LoadedModel:
    text = """<ir_version: 9, opset_import: ["": 18]> g (float[2,4] x) => (float[2,4] y) {
        y = Softmax(x) }"""
    return from_proto(onnx.parser.parse_model(text), Path("m.onnx"))


def relaxed_by(loaded: LoadedModel, reason: Reason, verdict: Verdict, fact: RangeFact) -> frozenset[int]:
    graph = loaded.graph
    judgements = [Judgement(Verdict.NEVER if v.op is None else verdict, (reason,)) for v in graph.typevars]
    facts = {v.id: fact for v in graph.values}
    verdicts, found = relax(graph, Verdicts(tuple(judgements)), facts)
    for index in found:
        assert verdicts.judgements[index].verdict is Verdict.INFER
        assert verdicts.judgements[index].reasons[0].rule == RELAXED
    for index in set(range(len(graph.typevars))) - found:
        assert verdicts.judgements[index] == judgements[index]
    return found


SAFE = RangeFact(-4.0, 4.0, Origin.OBSERVED)
RULE = Reason("softmax-overflow", "why")


def test_a_rule_gives_way_to_observed_values_far_from_overflow() -> None:
    assert len(relaxed_by(model(), RULE, Verdict.DENY, SAFE)) == 1


@pytest.mark.parametrize(
    ("reason", "verdict", "fact"),
    [
        (RULE, Verdict.DENY, RangeFact(-4.0, 4.0, Origin.SYNTHETIC)),
        (RULE, Verdict.DENY, RangeFact(0.0, 9000.0, Origin.OBSERVED)),
        (RULE, Verdict.DENY, RangeFact(0.0, 4.0, Origin.OBSERVED, has_nan=True)),
        (RULE, Verdict.DENY, RangeFact(0.0, float("inf"), Origin.OBSERVED)),
        (RULE, Verdict.DENY, RangeFact(1e-12, 1e-12, Origin.CONSTANT, min_abs_nonzero=1e-12)),
        (RULE, Verdict.NEVER, SAFE),
        (Reason("keep-fp32", "why", Authority.COMMAND_LINE), Verdict.DENY, SAFE),
        (Reason("mine", "why", Authority.RULES_FILE), Verdict.DENY, SAFE),
        (Reason("profile-safe", "why", Authority.PROFILE), Verdict.DENY, SAFE),
        (Reason("eps-underflow", "why", Authority.EVIDENCE), Verdict.DENY, SAFE),
        (Reason("no-fp16-kernel", "why"), Verdict.DENY, SAFE),
    ],
    ids=str,
)
def test_what_stays(reason: Reason, verdict: Verdict, fact: RangeFact) -> None:
    assert relaxed_by(model(), reason, verdict, fact) == frozenset()
