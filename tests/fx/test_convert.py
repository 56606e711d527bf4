"""What the converter does to calls, parameters, literals and assertions, one thing at a time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from fp16conv import fx
from fp16conv.conversion.fx import verify_types
from fp16conv.errors import ConversionError, PlanError, UsageError
from fp16conv.files import make_temporary
from fp16conv.graph import DataType
from fp16conv.planning.serialize import dump_plan, load_plan

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns about itself

X = torch.linspace(-2.0, 2.0, 64).reshape(4, 16)


def convert(function: Any, *args: Any, **options: Any) -> fx.Conversion:
    """Convert a module, or a function of (module, inputs) with one linear layer `m.lin` of 16 x 16."""
    module = function if isinstance(function, nn.Module) else Wrapped(function)
    conversion = fx.convert_module(module, args or (X,), **options)
    assert conversion.result is not None
    assert conversion.result.ok, [m.problems for m in conversion.result.outputs]
    return conversion


class Wrapped(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lin = nn.Linear(16, 16)
        self.shared = nn.Parameter(torch.randn(16))
        self.register_buffer("total", torch.zeros(4, 16))
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def calls(conversion: fx.Conversion, name: str) -> list[torch.fx.Node]:
    return [n for n in conversion.program.graph.nodes if str(n.target).startswith(f"aten.{name}")]


def dtype(node: Any) -> torch.dtype:
    found = node.meta["val"].dtype
    assert isinstance(found, torch.dtype)
    return found


def test_one_cast_serves_all_readers() -> None:
    conversion = convert(lambda m, x: m.lin(x) + F.linear(x, m.lin.weight))
    assert len([n for n in calls(conversion, "_to_copy") if n.args[0].name == "args_0"]) == 1


def test_a_parameter_of_both_types_is_stored_twice() -> None:
    conversion = convert(
        lambda m, x: (m.lin(x) * m.shared, torch.exp(m.shared)), force_fp16="type:aten::mul.*"
    )
    stored = conversion.program.state_dict
    assert stored["shared"].dtype is torch.float32
    assert stored["shared_fp16"].dtype is torch.float16
    assert isinstance(stored["shared_fp16"], nn.Parameter)
    assert stored["lin.weight"].dtype is torch.float16


def test_a_reduction_reads_fp16_and_computes_in_fp32() -> None:
    conversion = convert(lambda m, x: torch.softmax(m.lin(x), -1))
    (softmax,) = calls(conversion, "softmax")
    assert softmax.kwargs["dtype"] is torch.float32
    assert dtype(softmax.args[0]) is torch.float16
    assert dtype(softmax) is torch.float32
    assert not [n for n in calls(conversion, "_to_copy") if n.kwargs["dtype"] is torch.float32]


@pytest.mark.parametrize(
    "reduce",
    [
        lambda y: y.sum(),
        lambda y: y.sum(-1, keepdim=True),
        lambda y: y.mean(-1),
        lambda y: y.prod(-1),
        lambda y: y.cumsum(-1),
        lambda y: y.cumprod(-1),
        lambda y: torch.linalg.vector_norm(y, dim=-1),
        lambda y: torch.log_softmax(y, -1),
        lambda y: y.norm(dim=-1),
    ],
    ids=["sum", "sum.dim", "mean", "prod", "cumsum", "cumprod", "vector_norm", "log_softmax", "norm"],
)
def test_every_free_cast_runs_on_the_cpu(reduce: Any) -> None:
    conversion = convert(lambda m, x: reduce(m.lin(x)))
    assert not [n for n in calls(conversion, "_to_copy") if n.kwargs["dtype"] is torch.float32]


def test_fp32_in_and_fp16_out_casts_behind_the_call() -> None:
    """softmax(x, dtype=half) would round its input first; the plan says: compute in FP32."""
    conversion = convert(
        lambda m, x: m.lin(torch.softmax(torch.exp(x), -1)),
        force_fp16="type:aten::softmax.int",
        keep_fp32="type:aten::exp.default",
    )
    (softmax,) = calls(conversion, "softmax")
    read = dtype(softmax.args[0])
    assert read is torch.float16 or (dtype(softmax) is torch.float32 and softmax.kwargs.get("dtype") is None)


def test_literals_that_act_as_infinity_saturate() -> None:
    conversion = convert(lambda m, x: torch.softmax(m.lin(x).masked_fill(x > 1, -1e9), -1))
    (fill,) = calls(conversion, "masked_fill")
    assert fill.args[2] == -65504.0


def test_a_literal_that_is_a_number_is_never_clipped() -> None:
    conversion = convert(lambda m, x: m.lin(x) * 1e6)
    (product,) = calls(conversion, "mul")
    assert product.args[1] == 1e6
    assert dtype(product) is torch.float32


def test_factories_make_halves_where_halves_are_read() -> None:
    conversion = convert(lambda m, x: m.lin(torch.cat([m.lin(x), torch.zeros(1, 16)])))
    (zeros,) = calls(conversion, "zeros")
    assert dtype(zeros) is torch.float16


def test_positions_stay_fp32() -> None:
    conversion = convert(lambda m, x: m.lin(x) + torch.arange(16, dtype=torch.float32))
    assert dtype(*calls(conversion, "arange")) is torch.float32


def test_batch_norm_reads_halves_and_keeps_its_parameters() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    conversion = convert(net, torch.randn(1, 3, 8, 8))
    assert conversion.program.state_dict["1.running_var"].dtype is torch.float32
    assert conversion.program.state_dict["0.weight"].dtype is torch.float16
    (norm,) = calls(conversion, "_native_batch_norm_legit_no_training")
    assert dtype(norm.args[0]) is torch.float16


def test_casts_of_the_user_stay() -> None:
    conversion = convert(lambda m, x: m.lin(x.half().float()) + x.bfloat16().float())
    kinds = [n.kwargs["dtype"] for n in calls(conversion, "_to_copy")]
    assert torch.bfloat16 in kinds
    assert torch.float16 in kinds


def test_an_island_of_the_user_stays_fp32() -> None:
    """A half model that goes up to FP32 for its norm means it."""
    net = Wrapped(lambda m, x: m.lin(F.layer_norm(x.float(), [16]).half())).half()
    conversion = convert(net, X.half())
    assert dtype(*calls(conversion, "layer_norm")) is torch.float32


def test_assertions_about_changed_types_go_and_others_stay() -> None:
    program = fx.load(Wrapped(lambda m, x: (m.lin(x).to(torch.float64).float(), x.to(torch.float64))), (X,))
    conversion = fx.convert_module(program, force_fp16="type:aten::linear.default")
    left = [n for n in conversion.program.graph.nodes if "_assert_tensor_metadata" in str(n.target)]
    for node in left:
        assert node.args[3] is dtype(node.args[0])
    assert len(left) < len([n for n in program.program.graph.nodes if "_assert_tensor" in str(n.target)])
    conversion.module(X)


def test_mutated_buffers_stay_fp32_and_are_still_mutated() -> None:
    def step(m: Wrapped, x: torch.Tensor) -> torch.Tensor:
        m.total.add_(m.lin(x))
        return m.total * 1.0

    conversion = convert(step)
    module = conversion.module
    first, second = module(X).clone(), module(X).clone()
    torch.testing.assert_close(second, 2 * first, rtol=1e-2, atol=1e-2)
    assert conversion.program.state_dict["total"].dtype is torch.float32


def test_control_flow_keeps_its_types() -> None:
    def choose(m: Wrapped, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 100, lambda y: y * 2.0, lambda y: y - 1.0, (m.lin(x),))

    conversion = convert(choose)
    assert dtype(*calls(conversion, "linear")) is torch.float16


def test_complex_numbers_keep_their_types() -> None:
    conversion = convert(lambda m, x: torch.fft.irfft(torch.fft.rfft(m.lin(x)), n=16))
    (spectrum,) = calls(conversion, "_fft_r2c") or calls(conversion, "fft_rfft")
    assert dtype(spectrum.args[0]) is torch.float32


def test_integers_times_a_fraction_stay_fp32() -> None:
    """Nothing can make an integer times 0.5 a half: torch gives FP32."""
    conversion = convert(lambda m, x, i: m.lin(x) + i * 0.5, X, torch.arange(16))
    assert dtype(calls(conversion, "mul")[0]) is torch.float32


def test_operators_nobody_knows_keep_their_types() -> None:
    @torch.library.custom_op("fp16conv_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        assert x.dtype is torch.float32
        return x * 2.0

    twice.register_fake(lambda x: torch.empty_like(x))
    conversion = convert(lambda m, x: m.lin(twice(m.lin(x))))
    assert len(calls(conversion, "linear")) == 2
    assert all(dtype(n) is torch.float16 for n in calls(conversion, "linear"))


def test_nested_inputs_and_outputs_keep_their_structure() -> None:
    def step(m: Wrapped, batch: dict[str, Any]) -> dict[str, Any]:
        return {"y": m.lin(batch["x"]), "rest": [batch["n"], {"z": batch["x"] * 2.0}]}

    batch = {"x": X, "n": torch.arange(3)}
    conversion = convert(step, batch)
    given = conversion.module(batch)
    assert set(given) == {"y", "rest"}
    assert given["rest"][0].dtype is torch.int64
    names = [m.name for m in conversion.result.outputs] if conversion.result else []
    assert names == ["rest_0", "rest_1_z", "y"] or set(names) == {"y", "rest_0", "rest_1_z"}


def test_the_interface_can_go_fp16() -> None:
    conversion = convert(lambda m, x: m.lin(x), keep_io_types=False)
    assert conversion.module(X.half()).dtype is torch.float16
    assert not calls(conversion, "_to_copy")


def test_every_value_has_the_recorded_type() -> None:
    conversion = convert(lambda m, x: F.layer_norm(m.lin(x), [16]) + torch.topk(m.lin(x), 16).values)
    for node in conversion.program.graph.nodes:
        assert node.op == "output" or "val" in node.meta


def test_a_plan_from_a_file_gives_the_same_program(tmp_path: Path) -> None:
    loaded = fx.load(Wrapped(lambda m, x: torch.softmax(m.lin(x), -1)), (X,))
    plan = fx.plan(loaded)
    (tmp_path / "plan.json").write_text(dump_plan(plan), encoding="utf-8")
    again = load_plan(tmp_path / "plan.json", loaded.graph)
    assert again == plan
    report = fx.convert(loaded, tmp_path / "half.pt2", plan=tmp_path / "plan.json")
    assert report.output is not None
    assert (tmp_path / "half.pt2").is_file()


def test_a_plan_of_another_program_is_refused() -> None:
    plan = fx.plan(fx.load(nn.Linear(4, 4), (torch.ones(1, 4),)))
    with pytest.raises(PlanError):
        fx.convert_module(fx.load(nn.Linear(4, 5), (torch.ones(1, 4),)), plan=plan)


def test_out_of_tolerance_writes_nothing(tmp_path: Path) -> None:
    loaded = fx.load(Wrapped(lambda m, x: m.lin(x)), (X,))
    report = fx.convert(loaded, tmp_path / "half.pt2", rtol=1e-9, atol=0.0, repair=False)
    assert report.output is None
    assert not report.ok
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_goes_and_a_full_disk_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("[enforce fail at inline_container.cc:668] . unexpected pos 64 vs 0")

    loaded = fx.load(nn.Linear(4, 4), (torch.ones(1, 4),))
    left = make_temporary(tmp_path)
    left.rename(left.with_name(left.name.replace(f"-{os.getpid()}-", "-999999999-")))
    (tmp_path / "half.pt2").write_bytes(b"of before")
    with monkeypatch.context() as patch:
        patch.setattr(torch.export, "save", fail)
        with pytest.raises(ConversionError, match="could not be written"):
            fx.convert(loaded, tmp_path / "half.pt2")
    assert (tmp_path / "half.pt2").read_bytes() == b"of before"
    assert [path.name for path in tmp_path.iterdir()] == ["half.pt2"]


def test_only_pt2_is_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="pt2"):
        fx.convert(nn.Linear(4, 4), tmp_path / "half.onnx")


def test_an_onnx_target_is_refused() -> None:
    with pytest.raises(UsageError, match="runs ONNX models"):
        fx.plan(fx.load(nn.Linear(4, 4), (torch.ones(1, 4),)), target="onnxruntime-cpu")


def test_locations_name_module_and_line() -> None:
    loaded = fx.load(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (torch.ones(1, 4),))
    linear = loaded.graph.ops[0]
    assert linear.label == "0/linear"
    assert linear.metadata["module"] == "0"
    assert "linear.py:" in linear.metadata["line"] or "container.py:" in linear.metadata["line"]
    own = fx.load(Wrapped(lambda m, x: m.lin(x) * 2.0), (X,)).graph
    assert any(op.metadata["line"].partition(":")[0].endswith("test_convert.py") for op in own.ops)


def test_globs_name_modules() -> None:
    conversion = convert(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)), keep_fp32="0/*")
    kinds = [d.dtype for d in conversion.plan.decisions if d.op_type == "aten::linear.default"]
    assert kinds == [DataType.FLOAT, DataType.FLOAT16]


def test_a_wrong_type_is_found_before_anything_runs() -> None:
    program = fx.convert_module(Wrapped(lambda m, x: m.lin(x)), (X,)).program
    (linear,) = [n for n in program.graph.nodes if str(n.target) == "aten.linear.default"]
    cast = linear.args[0]
    linear.args = (cast.args[0], *linear.args[1:])
    with pytest.raises(ConversionError, match=r"aten\.linear"):
        verify_types(program, "broken")


def test_uninitialised_memory_is_no_evidence() -> None:
    """`baddbmm(empty, q, k, beta=0)` ignores what happened to be in memory: so do ranges and decisions."""
    heap = [torch.full((4, 16, 16), 1e30) for _ in range(64)]  # what a new tensor may find in memory
    loaded = fx.load(
        Wrapped(lambda m, x: torch.baddbmm(torch.empty(4, 16, 16), m.lin(x), x, beta=0, alpha=0.125)),
        (torch.linspace(-2.0, 2.0, 1024).reshape(4, 16, 16),),
    )
    del heap
    plan = fx.plan(loaded)
    (product,) = [d for d in plan.decisions if d.op_type == "aten::baddbmm.default"]
    assert product.dtype is DataType.FLOAT16


@pytest.mark.parametrize("beside", [0.0, 1e5], ids=["mask", "large-numbers-too"])
def test_an_infinity_that_is_read_is_a_half_and_what_is_beside_it_counts(beside: float) -> None:
    mask = torch.full((16, 16), -torch.inf).triu(1)
    mask[0, 0] = beside
    conversion = fx.convert_module(
        Wrapped(lambda m, x, mask: F.scaled_dot_product_attention(m.lin(x), x, x, attn_mask=mask)),
        (torch.linspace(-2.0, 2.0, 1024).reshape(4, 16, 16), mask),
    )
    (attention,) = calls(conversion, "scaled_dot_product_attention")
    assert dtype(attention) is (torch.float32 if beside else torch.float16)
