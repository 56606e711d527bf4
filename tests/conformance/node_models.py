"""The models of onnx's backend tests, and what must hold for each of them after a conversion."""

from __future__ import annotations

import functools
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.loader import load_model_tests

from fp16conv.conversion.loss_guard import refuse_losses
from fp16conv.conversion.onnx import convert
from fp16conv.conversion.save import serialize
from fp16conv.conversion.verify import verify
from fp16conv.evidence.calibration import calibrate
from fp16conv.execution.emulator import emulate_model
from fp16conv.execution.feeds import FeedSource
from fp16conv.execution.matching import match_feeds
from fp16conv.execution.runtime import Runtime, RuntimeFailure, SessionHandle
from fp16conv.frontends.onnx import LoadedModel, load_onnx
from fp16conv.graph import DataType
from fp16conv.inputs import read_options
from fp16conv.planning.plan import PrecisionPlan
from fp16conv.planning.planner import make_plan
from fp16conv.rulebook.book import load_book
from fp16conv.rulebook.judge import judge
from fp16conv.rulebook.types import Verdict
from fp16conv.study import Study
from fp16conv.validation.metrics import OutputComparison, OutputMetrics

PACKAGED = ("simple", "pytorch-operator", "pytorch-converted")
RTOL, ATOL = 0.02, 0.001  # relative L2, and root mean square error on top

Feeds = dict[str, Any]
DataSet = tuple[Feeds, Feeds]


@dataclass(frozen=True)
class NodeModel:
    """One model of the backend tests; `read` gives the model and its data sets (inputs, expected outputs)."""

    name: str
    read: Callable[[], tuple[onnx.ModelProto, list[DataSet]]] = field(repr=False)


@functools.cache
def all_node_models() -> tuple[NodeModel, ...]:
    """Every model of onnx.backend.test, by name (about 2,100)."""
    found: dict[str, NodeModel] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reference numbers overflow and divide by zero on purpose
        cases = collect_testcases(None)
    for case in cases:
        found[case.name] = NodeModel(case.name, functools.partial(_from_memory, case))
    for kind in PACKAGED:
        for case in load_model_tests(kind=kind):
            name = case.name if case.name not in found else f"{case.name}-{kind}"
            found[name] = NodeModel(name, functools.partial(_from_folder, Path(case.model_dir)))
    return tuple(found[name] for name in sorted(found))


def _from_memory(case: Any) -> tuple[onnx.ModelProto, list[DataSet]]:
    graph = case.model.graph
    return case.model, [
        (_named(graph.input, inputs), _named(graph.output, outputs)) for inputs, outputs in case.data_sets
    ]


def _from_folder(folder: Path) -> tuple[onnx.ModelProto, list[DataSet]]:
    model = onnx.load(folder / "model.onnx")
    weights = {t.name for t in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in weights]
    return model, [
        (_read_side(data, "input", inputs), _read_side(data, "output", model.graph.output))
        for data in sorted(folder.glob("test_data_set_*"))
    ]


def _named(infos: Any, values: Any) -> Feeds:
    return {info.name: _plain(value) for info, value in zip(infos, values, strict=False)}


def _read_side(folder: Path, side: str, infos: Any) -> Feeds:
    found = {}
    for number, info in enumerate(infos):
        file = folder / f"{side}_{number}.pb"
        if not file.exists():
            continue
        content = file.read_bytes()
        kind = info.type.WhichOneof("value")
        if kind == "sequence_type":
            found[info.name] = onnx.numpy_helper.to_list(onnx.SequenceProto.FromString(content))
        elif kind == "optional_type":
            found[info.name] = onnx.numpy_helper.to_optional(onnx.OptionalProto.FromString(content))
        elif kind == "tensor_type":
            found[info.name] = _plain(onnx.TensorProto.FromString(content))
    return found


def _plain(value: Any) -> Any:
    """Arrays as the runtime takes them: bfloat16 as float32; float8 and int4 stay what they are."""
    if isinstance(value, onnx.TensorProto):
        value = onnx.numpy_helper.to_array(value)
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if value is None:
        return None
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


@dataclass(frozen=True)
class Reference:
    """A model to convert, and its FP32 run.

    Args:
        loads: whether ONNX Runtime loads it.
        results: what it gives per data set; empty where numpy cannot hold the inputs or outputs.
        failure: why ONNX Runtime does not run it, empty where it does.
    """

    name: str
    loaded: LoadedModel
    feeds: list[Feeds]
    results: list[Feeds]
    failure: str

    @property
    def runs(self) -> bool:
        return bool(self.results)

    @property
    def loads(self) -> bool:
        return not self.failure


class Sweep:
    """Converts node models and looks at the results; one runtime for all.

    Args:
        runtime: where everything runs.
        folder: for the models' files.
    """

    def __init__(self, runtime: Runtime, folder: Path) -> None:
        self.runtime, self._folder = runtime, folder
        self._book = load_book()

    def reference(self, model: NodeModel) -> Reference:
        """Load the model as we do, and run it as it is."""
        proto, sets = model.read()
        path = self._folder / "source.onnx"
        path.write_bytes(proto.SerializeToString())
        results: list[Feeds] = []
        failure = ""
        try:
            results = self._run_as_expected(path, proto, sets)
        except RuntimeFailure as e:
            failure = essence(e)
        except _Wrong as e:
            failure = str(e)
        loaded = load_onnx(path)
        refuse_losses(loaded.proto, model.name)
        return Reference(model.name, loaded, [feeds for feeds, _ in sets], results, failure)

    def _run_as_expected(self, path: Path, proto: onnx.ModelProto, sets: list[DataSet]) -> list[Feeds]:
        session = self._open(path, proto)
        try:
            results = []
            for feeds, expected in sets:
                results.append(self.runtime.run(session, feeds))
                if name := _other_shape(results[-1], expected):
                    raise _Wrong(f"run: output {name} has another shape than the model's author expects")
            return results
        except RuntimeFailure:
            if _numpy_lacks(session):
                return []
            raise
        finally:
            self.runtime.unload(session)

    def _open(self, path: Path, proto: onnx.ModelProto) -> SessionHandle:
        """Load; a model whose file format is newer than the runtime is stamped with the newest it knows."""
        try:
            return self.runtime.load(path)
        except RuntimeFailure as failure:
            limit = re.search(r"max supported IR version: (\d+)", failure.message)
            if limit is None:
                raise
            proto.ir_version = int(limit[1])
            path.write_bytes(proto.SerializeToString())
            return self.runtime.load(path)

    def study(self, reference: Reference, *, observe: bool = True) -> Study:
        """What is known of the model: constants, and ranges observed on the test's own inputs."""
        makers = tuple(functools.partial(dict, feeds) for feeds in reference.feeds)
        feeds = FeedSource("real", "the test's own inputs", makers)
        calibration = None
        if observe and reference.runs:
            calibration = calibrate(reference.loaded, self.runtime, feeds)
        return Study(read_options(), reference.loaded, self._book, feeds, calibration, "", self.runtime)

    def most(self, study: Study, profile: str) -> PrecisionPlan:
        """The plan that uses every FP16 a profile permits, the interface included."""
        verdicts = judge(study.loaded.graph, self._book, study.facts, profile=profile, keep_io_types=False)
        judgements = tuple(
            replace(j, verdict=Verdict.ALLOW) if j.verdict in (Verdict.INFER, Verdict.FOLLOW) else j
            for j in verdicts.judgements
        )
        return make_plan(
            study.loaded.graph,
            replace(verdicts, judgements=judgements),
            study.costs,
            rules_digest=self._book.digest,
        )

    def convert(self, reference: Reference, plan: PrecisionPlan) -> tuple[LoadedModel, list[str]]:
        """Apply a plan; the result and what is wrong with it: validity and losses."""
        model = convert(reference.loaded, plan)
        proto = serialize(model, reference.loaded)
        path = self._folder / "result.onnx"
        path.write_bytes(proto.SerializeToString(deterministic=True))
        problems = [f"{f.check}: {f.where}: {f.message}" for f in verify(path, reference.loaded, plan)]
        problems += [f"lost: {loss}" for loss in losses(reference.loaded.proto, proto)]
        return load_onnx(path), problems

    def load(self, result: LoadedModel, reference: Reference) -> str:
        """Load and run the converted model as it is; the runtime's message where it cannot."""
        try:
            session = self.runtime.load(result.path)
        except RuntimeFailure as failure:
            return essence(failure)
        try:
            for feeds in reference.feeds if reference.runs else ():
                self.runtime.run(session, match_feeds(session, _as_arrays(feeds)))
        except RuntimeFailure as failure:
            return essence(failure)
        finally:
            self.runtime.unload(session)
        return ""

    def compare(self, result: LoadedModel, reference: Reference) -> tuple[OutputMetrics, ...]:
        """The result under the emulator against the FP32 run.

        Where the result takes FP16 inputs, both sides get the rounded inputs: rounding them was the caller's.

        Raises:
            RuntimeFailure: the emulation does not load or run.
        """
        session = self.runtime.load(emulate_model(result.model))
        try:
            feeds = [match_feeds(session, _as_arrays(batch)) for batch in reference.feeds]
            outputs = [self.runtime.run(session, batch) for batch in feeds]
        finally:
            self.runtime.unload(session)
        expected = reference.results
        if any(info.type == "tensor(float16)" for info in session.inputs):
            expected = self._rerun(reference, feeds)
        metrics = []
        for info in session.outputs:
            comparison = OutputComparison(info.name)
            for before, after in zip(expected, outputs, strict=True):
                comparison.update(before[info.name], after[info.name])
            metrics.append(comparison.metrics(rtol=RTOL, atol=ATOL))
        return tuple(metrics)

    def _rerun(self, reference: Reference, feeds: list[Feeds]) -> list[Feeds]:
        session = self.runtime.load(reference.loaded.path)
        try:
            return [self.runtime.run(session, match_feeds(session, batch)) for batch in feeds]
        finally:
            self.runtime.unload(session)


def _as_arrays(feeds: Feeds) -> Feeds:
    """Scalars become arrays."""
    return {n: np.asarray(v) if isinstance(v, np.generic) else v for n, v in feeds.items()}


class _Wrong(Exception):  # noqa: N818 - about the runtime, not an error of ours
    """The runtime's result contradicts the model's author."""


def _other_shape(found: Feeds, expected: Feeds) -> str:
    """The first output whose shape is not the expected one."""
    for name, array in expected.items():
        other = found.get(name)
        if isinstance(array, np.ndarray) and isinstance(other, np.ndarray) and array.shape != other.shape:
            return name
    return ""


_PLAIN_TYPES = re.compile(
    r"(?:seq\()?tensor\((?:float|double|float16|bfloat16|u?int(?:8|16|32|64)|bool|string)\)\)?$"
)


def _numpy_lacks(session: SessionHandle) -> bool:
    """Whether the interface has a type that no numpy array holds (float8, int4)."""
    return any(not _PLAIN_TYPES.match(i.type) for i in (*session.inputs, *session.outputs))


_NOISE = (
    (r"^.*, Error ", ""),  # the operator with all its types
    (r"^\w+: \[ONNXRuntimeError\] : \d+ : \w+ : ", ""),
    (r"Load model from \S+ failed:", ""),
    (r" with name ''|Name:'' |/\S*/(?=\S)", ""),  # names of nodes that have none, folders
    (r"\w+\.(?:cc|h):\d+ .*?\) (?=\w)", ""),  # source lines
)


def essence(failure: RuntimeFailure) -> str:
    """What the runtime said, without folders, names and numbers that change from run to run."""
    if failure.crashed:
        return f"{failure.stage}: crashed"
    line = next(iter(failure.message.strip().splitlines()), str(failure))
    for pattern, replacement in _NOISE:
        line = re.sub(pattern, replacement, line)
    return f"{failure.stage}: {line.strip()[:160].strip()}"


def unchanged(plan: PrecisionPlan, loaded: LoadedModel) -> list[str]:
    """Type variables that are legal in FP16, may change, and stayed FP32."""
    legal = {t.id for t in loaded.graph.typevars if t.admits_fp16}
    return [
        f"{d.label} ({d.op_type or 'interface'}) {d.symbol}: {d.reasons[0].text if d.reasons else d.verdict}"
        for d in plan.decisions
        if d.typevar in legal and d.dtype is DataType.FLOAT and d.verdict is not Verdict.NEVER
    ]


def losses(before: onnx.ModelProto, after: onnx.ModelProto) -> Iterator[str]:
    """What a conversion must keep and did not: names, docs, metadata, versions, operators in order."""
    for name in (
        "ir_version",
        "producer_name",
        "producer_version",
        "domain",
        "model_version",
        "doc_string",
    ):
        if getattr(before, name) != getattr(after, name):
            yield f"{name}: {getattr(before, name)!r} became {getattr(after, name)!r}"
    if _imports(before).items() - _imports(after).items():  # a first Cast may need the standard domain
        yield f"opset imports: {_imports(before)} became {_imports(after)}"
    if _props(before.metadata_props) != _props(after.metadata_props):
        yield "model metadata"
    if [(f.domain, f.name, f.overload) for f in before.functions] != [
        (f.domain, f.name, f.overload) for f in after.functions
    ]:
        yield "functions"
    yield from _graph_losses(before.graph, after.graph, is_main=True)


def _imports(model: onnx.ModelProto) -> dict[str, int]:
    return {i.domain: i.version for i in model.opset_import}


def _props(entries: Any) -> dict[str, str]:
    return {e.key: e.value for e in entries}


def _graph_losses(before: onnx.GraphProto, after: onnx.GraphProto, is_main: bool) -> Iterator[str]:
    if (before.name, before.doc_string) != (after.name, after.doc_string):
        yield f"name or doc string of graph {before.name}"
    if _props(before.metadata_props) != _props(after.metadata_props):
        yield f"metadata of graph {before.name}"
    for side in ("input", "output"):
        old, new = getattr(before, side), getattr(after, side)
        if len(old) != len(new) or (is_main and [i.name for i in old] != [i.name for i in new]):
            yield f"{side}s of graph {before.name}"
    missing = {t.name for t in before.initializer} - {t.name for t in after.initializer}
    used = {name for node in before.node for name in node.input}
    lost = sorted(name for name in missing if name not in used)
    if lost:
        yield f"initializers {', '.join(lost)}"
    pairs = list(_pairs(before.node, after.node))
    if any(old is None or new is None for old, new in pairs):
        yield f"operators of graph {before.name}"
        return
    for old, new in pairs:
        if set(_props(old.metadata_props).items()) - set(_props(new.metadata_props).items()):
            yield f"metadata of {old.name or old.op_type}"
        if {a.name for a in old.attribute} - {a.name for a in new.attribute}:
            yield f"attributes of {old.name or old.op_type}"
        bodies = {a.name: a.g for a in new.attribute if a.HasField("g")}
        for attribute in old.attribute:
            if attribute.HasField("g"):
                yield from _graph_losses(attribute.g, bodies[attribute.name], is_main=False)


_CASTS = ("Cast", "CastLike", "Constant")


def _pairs(before: Any, after: Any) -> Iterator[tuple[Any, Any]]:
    """Operators before and after, in order; casts and constants come and go, Clip may become Max and Min."""
    rest = [n for n in after if n.op_type not in _CASTS]
    for old in (n for n in before if n.op_type not in _CASTS):
        if old.op_type == "Clip" and [n.op_type for n in rest[:2]] == ["Max", "Min"]:
            del rest[:2]
            continue
        new = rest.pop(0) if rest else None
        same = new is not None and (old.domain, old.op_type, old.name, old.doc_string) == (
            new.domain,
            new.op_type,
            new.name,
            new.doc_string,
        )
        yield old, new if same else None
    for new in rest:
        yield None, new


@dataclass
class Findings:
    """What a model showed.

    Args:
        problems: what must not be, one sentence each.
        failure: why ONNX Runtime does not run the FP32 model.
        gap: what ONNX Runtime says to the model with everything in FP16.
        integers: integer outputs that change in the plan with every FP16 that `balanced` permits.
        counts: plans with something in FP16, comparisons that were right.
    """

    problems: list[str] = field(default_factory=list)
    failure: str = ""
    gap: str = ""
    integers: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def examine(sweep: Sweep, model: NodeModel) -> Findings:
    """Convert a model three ways and look at the results.

    `balanced` as it is; `most`: every FP16 that `balanced` permits, the interface included; `half`: every
    type variable that may be FP16. All must be valid and lose nothing, also where ONNX Runtime does not run
    the source; where it does, the first two must be right under the emulator and all three must load and run.
    """
    found = Findings()
    reference = sweep.reference(model)
    found.failure = reference.failure
    found.counts["runs" if reference.runs else "only loads" if reference.loads else "does not run"] += 1
    study = sweep.study(reference)
    plans = {
        "balanced": study.plan(),
        "most": sweep.most(study, "balanced"),
        "half": sweep.most(study, "half"),
    }
    for name, plan in plans.items():
        result, problems = sweep.convert(reference, plan)
        if name == "half":
            problems += [f"stays FP32: {u}" for u in unchanged(plan, reference.loaded)]
        found.problems += [f"{model.name}, {name}: {p}" for p in problems]
        found.counts[f"{name} valid"] += not problems
        found.counts[f"{name} has FP16"] += any(d.dtype is DataType.FLOAT16 for d in plan.decisions)
        if not reference.loads:
            continue
        said = sweep.load(result, reference)
        if name == "half":
            found.gap = said
            continue
        if said and name == "balanced":
            found.problems.append(f"{model.name}, {name}: {said}")
        if reference.runs:
            wrong = [m for m in sweep.compare(result, reference) if not m.ok]
            if name == "most":
                found.integers = [m.name for m in wrong if m.kind == "integer" and not m.structure]
                wrong = [m for m in wrong if m.name not in found.integers]
            found.problems += [f"{model.name}, {name}: {m.name}: {'; '.join(m.problems)}" for m in wrong]
            found.counts[f"{name} right"] += not wrong
    return found
