"""Every operator at every opset of its schema: each type variable that can be FP16 gives a valid model."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from fp16conv.conversion.onnx import convert
from fp16conv.conversion.save import serialize
from fp16conv.conversion.verify import verify
from fp16conv.execution.runtime import Runtime, RuntimeFailure
from fp16conv.frontends.onnx import LoadedModel, load_onnx
from fp16conv.frontends.schemas import find_schema
from fp16conv.graph import DataType, Op, TypeVar
from fp16conv.planning.plan import PrecisionPlan
from tests.conformance.one_op_models import OneOpModel, Signature, all_signatures, build
from tests.conformance.runtime_gaps import essence, read_gaps
from tests.roundtrip.plans import make_plan

OLDEST_RUN = 7  # ONNX Runtime says of older opsets that it does not support them
REFUSED_ANYWAY = ("NOT_IMPLEMENTED", "ValidateOpsetForDomain", "Exception during initialization")
"""A model that ONNX Runtime does not load in FP32 either; what it says of the types still counts."""

GAPS = read_gaps("one_op")


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime(threads=1) as runtime:
        yield runtime


@pytest.mark.parametrize("signature", all_signatures(), ids=lambda s: s.label)
def test_every_variable_alone_in_fp16(signature: Signature, tmp_path: Path, runtime: Runtime) -> None:
    models = build(signature)
    bound = {symbol for model in models for symbol in model.symbols}
    assert set(signature.symbols()) <= bound, "no valid FP32 model was found"
    for model in models:
        loaded = _load(model.proto, tmp_path / "source.onnx")
        op = _op(loaded)
        for typevar in loaded.graph.typevars_of(op.id):
            if not typevar.admits_fp16:
                continue
            plan = make_plan(loaded.graph, functools.partial(_is, typevar), keep_io_types=False)
            result = _convert(loaded, plan, tmp_path / "result.onnx")
            findings = verify(result.path, loaded, plan)
            assert not findings, (model.name, typevar.symbol, findings[0])
            assert _dtypes(result) == _expected(loaded, typevar), (model.name, typevar.symbol)
            _check_load(runtime, model, typevar, loaded, result)


@pytest.mark.parametrize("signature", all_signatures(), ids=lambda s: s.label)
def test_a_variable_that_can_be_fp16_is_one_that_may_change(signature: Signature, tmp_path: Path) -> None:
    """The front end makes a variable of each, except where corrections say otherwise."""
    schema = find_schema(signature.domain, signature.name, signature.since)
    assert schema is not None
    for model in build(signature):
        loaded = _load(model.proto, tmp_path / "source.onnx")
        op = _op(loaded)
        free = {
            s.partition(":")[0]
            for tv in loaded.graph.typevars_of(op.id)
            if tv.admits_fp16
            for s in tv.symbol.split("+")
        }
        tied = {symbol for symbol in schema.follows if schema.follows[symbol] in free}
        illegal = {symbol for symbol in model.symbols if not schema.admits_fp16(symbol)}
        assert set(model.symbols).intersection(signature.symbols()) - illegal <= free | tied, model.name


def test_listed_gaps_exist() -> None:
    names = {f"{model.name} {s}" for sig in all_signatures() for model in build(sig) for s in model.symbols}
    merged = {name for name in GAPS if "+" in name}
    assert not GAPS.keys() - names - merged


def _is(chosen: TypeVar, typevar: TypeVar) -> bool:
    return typevar.id == chosen.id


def _load(proto: onnx.ModelProto, path: Path) -> LoadedModel:
    path.write_bytes(proto.SerializeToString())
    return load_onnx(path)


def _convert(loaded: LoadedModel, plan: PrecisionPlan, path: Path) -> LoadedModel:
    return _load(serialize(convert(loaded, plan), loaded), path)


def _op(loaded: LoadedModel) -> Op:
    return next(op for op in loaded.graph.ops if op.name == "op")


def _dtypes(loaded: LoadedModel) -> list[DataType | None]:
    op = _op(loaded)
    slots = (*op.inputs, *op.outputs)
    return [None if v is None else loaded.graph.values[v].dtype for v in slots]


def _expected(loaded: LoadedModel, typevar: TypeVar) -> list[DataType | None]:
    """Exactly the slots of the variable are FP16."""
    op, dtypes = _op(loaded), _dtypes(loaded)
    half = {use.slot for use in typevar.uses} | {
        len(op.inputs) + slot for slot, value in enumerate(op.outputs) if value in typevar.defs
    }
    return [DataType.FLOAT16 if i in half else dtype for i, dtype in enumerate(dtypes)]


def _check_load(
    runtime: Runtime, model: OneOpModel, typevar: TypeVar, source: LoadedModel, result: LoadedModel
) -> None:
    """The result loads where the source does; where it does not, nothing is said against the types."""
    if source.graph.opsets.get("", OLDEST_RUN) < OLDEST_RUN:
        return
    before = _refusal(runtime, source.path).replace(source.path.name, result.path.name)
    after = _refusal(runtime, result.path)
    if before and (after == before or any(text in after for text in REFUSED_ANYWAY)):
        return
    assert after == GAPS.get(f"{model.name} {typevar.symbol}", ""), f"{model.name} {typevar.symbol}"


def _refusal(runtime: Runtime, path: Path) -> str:
    try:
        runtime.unload(runtime.load(path))
    except RuntimeFailure as failure:
        return essence(failure)
    return ""
