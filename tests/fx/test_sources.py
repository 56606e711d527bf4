"""Where programs may come from, and what is refused: nothing in a file may run as code."""

from __future__ import annotations

import io
import json
import pickle
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fp16conv import api, fx
from fp16conv.batch import find_models
from fp16conv.errors import DataError, Fp16convError, ModelError, UsageError
from fp16conv.frontends.sources import is_torch_source

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns about itself

FACTORIES = """
import torch
from torch import nn

def plain(): return nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1))
def paired(): return plain(), (torch.ones(2, 4),)
def single(): return plain(), torch.ones(2, 4)
def broken(): raise RuntimeError("no weights here")
def number(): return 7
def dynamic(): return plain(), (torch.ones(2, 4),), None, ({0: torch.export.Dim("batch", min=2, max=8)},)
ready = plain()

class Named(nn.Module):
    def forward(self, image, scale=None): return image * 2.0

def named(): return Named()
"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pt2") / "net.pt2"
    net = nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1))
    shapes = ({0: torch.export.Dim("batch", min=2)},)
    torch.export.save(torch.export.export(net, (torch.ones(2, 4),), dynamic_shapes=shapes), path)
    return path


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"factories_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(FACTORIES, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


def rewritten(source: Path, target: Path, change: Callable[[str, bytes], bytes]) -> Path:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return target


def in_graph(change: Callable[[dict[str, Any]], None]) -> Callable[[str, bytes], bytes]:
    def apply(name: str, content: bytes) -> bytes:
        if not name.endswith("models/model.json"):
            return content
        data = json.loads(content)
        change(data)
        return json.dumps(data).encode()

    return apply


class Bomb:
    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return (eval, ("__import__('fp16conv').__dict__.__setitem__('exploded', True)",))


def test_a_pt2_file_is_loaded_with_its_dynamic_shapes(archive: Path) -> None:
    loaded = fx.load(archive)
    assert [op.op_type for op in loaded.graph.ops] == ["linear.default", "softmax.int"]
    (image,) = (loaded.graph.values[i] for i in loaded.graph.main.inputs)
    assert isinstance(image.shape[0], str)
    assert image.shape[1] == 4
    assert loaded.example is not None
    assert loaded.example["input"].shape == (2, 4)


def test_the_converted_program_keeps_dynamic_shapes(archive: Path, tmp_path: Path) -> None:
    report = fx.convert(archive, tmp_path / "half.pt2")
    assert report.ok
    module = torch.export.load(tmp_path / "half.pt2").module()
    assert module(torch.ones(5, 4)).shape == (5, 3)


def test_pickled_objects_are_refused_and_not_run(archive: Path, tmp_path: Path) -> None:
    import fp16conv

    def arm(name: str, content: bytes) -> bytes:
        if not name.endswith("sample_inputs/model.pt"):
            return content
        buffer = io.BytesIO()
        torch.save({"x": Bomb()}, buffer)
        return buffer.getvalue()

    with pytest.raises(ModelError, match="unpickles more than tensors"):
        fx.load(rewritten(archive, tmp_path / "bomb.pt2", arm))
    assert "exploded" not in vars(fp16conv)


def test_a_pickle_that_pops_what_it_never_pushed_is_refused(archive: Path, tmp_path: Path) -> None:
    def spoil(name: str, content: bytes) -> bytes:
        if not name.endswith("sample_inputs/model.pt"):
            return content
        with zipfile.ZipFile(io.BytesIO(content)) as members:
            pickled = next(n for n in members.namelist() if n.endswith("data.pkl"))
            rest = {n: members.read(n) for n in members.namelist()}
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as members:
            for member, data in (rest | {pickled: b"\x80\x02Rq\x00."}).items():  # REDUCE on an empty stack
                members.writestr(member, data)
        return buffer.getvalue()

    with pytest.raises(ModelError, match="cannot be read"):
        fx.load(rewritten(archive, tmp_path / "spoiled.pt2", spoil))


def test_a_call_of_anything_but_operators_is_refused(archive: Path, tmp_path: Path) -> None:
    def arm(data: dict[str, Any]) -> None:
        data["graph_module"]["graph"]["nodes"][0]["target"] = "torch.os.system"

    with pytest.raises(ModelError, match=r"calls 'torch\.os\.system'"):
        fx.load(rewritten(archive, tmp_path / "call.pt2", in_graph(arm)))


@pytest.mark.parametrize(
    "size", ["__import__('os').getpid()", "(lambda: 1)()", "open('x')", "Symbol('s0').func", "[1][0]"]
)
def test_sizes_that_are_no_arithmetic_are_refused(archive: Path, tmp_path: Path, size: str) -> None:
    def arm(data: dict[str, Any]) -> None:
        data["graph_module"]["graph"]["tensor_values"]["linear"]["sizes"][0]["as_expr"]["expr_str"] = size

    with pytest.raises(ModelError, match="no arithmetic"):
        fx.load(rewritten(archive, tmp_path / "size.pt2", in_graph(arm)))


@pytest.mark.parametrize("member", ["data/constants/custom_obj_0", "data/constants/opaque_obj_0"])
def test_members_that_are_unpickled_are_refused(archive: Path, tmp_path: Path, member: str) -> None:
    path = tmp_path / "object.pt2"
    path.write_bytes(archive.read_bytes())
    with zipfile.ZipFile(path, "a") as target:
        target.writestr(f"net/{member}", pickle.dumps(1))
    with pytest.raises(ModelError, match="pickled object"):
        fx.load(path)


def test_compiled_code_is_refused(archive: Path, tmp_path: Path) -> None:
    path = tmp_path / "compiled.pt2"
    path.write_bytes(archive.read_bytes())
    with zipfile.ZipFile(path, "a") as target:
        target.writestr("net/data/aotinductor/model/wrapper.so", b"\x7fELF")
    with pytest.raises(ModelError, match="compiled code"):
        fx.load(path)


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".ckpt", ".pkl", ".bin", ".safetensors"])
def test_files_without_a_graph_get_the_way_to_export(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"weights{suffix}"
    torch.save({"w": torch.ones(2)}, path)
    with pytest.raises(ModelError, match=r"torch\.export\.save") as caught:
        api.analyze(str(path))
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 cut off"])
def test_broken_archives_are_reported(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "net.pt2"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"\.pt2"):
        fx.load(path)


def test_a_zip_of_something_else_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    with zipfile.ZipFile(path, "w") as target:
        target.writestr("readme.txt", "hello")
    with pytest.raises(ModelError, match=r"torch\.export archive"):
        fx.load(path)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        fx.load(tmp_path / "none.pt2")


@pytest.mark.parametrize("name", ["paired", "single"])
def test_a_factory_gives_module_and_inputs(factories: str, name: str) -> None:
    report = api.analyze(f"{factories}:{name}")
    assert report.ok
    assert report.decisions.macs_share == 1.0


def test_a_factory_may_give_dynamic_shapes(factories: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "batch.npz", input=np.ones((5, 4), np.float32))
    report = api.analyze(f"{factories}:dynamic", data=tmp_path / "batch.npz")
    assert report.evidence is not None
    assert not report.evidence.synthetic
    with pytest.raises(DataError, match="exported for 2 to 8"):
        api.analyze(f"{factories}:dynamic", shapes={"input": (9, 4)})
    with pytest.raises(DataError, match="unless the factory returns dynamic_shapes"):
        api.analyze(f"{factories}:paired", data=tmp_path / "batch.npz")


def test_a_module_that_does_not_run_is_told_from_one_that_is_not_captured() -> None:
    with pytest.raises(ModelError, match="does not run on the example inputs"):
        fx.load(nn.Linear(4, 3), (torch.ones(2, 5),))


def test_a_module_in_a_module_is_a_source_too(factories: str) -> None:
    loaded = fx.load(f"{factories}:ready", (torch.ones(2, 4),))
    assert len(loaded.graph.ops) == 2


def test_data_and_shapes_stand_in_for_example_inputs(factories: str, tmp_path: Path) -> None:
    source = f"{factories}:named"
    with pytest.raises(UsageError, match="image"):
        api.plan(source)
    assert api.plan(source, shapes={"image": (2, 3)}).decisions
    np.savez(tmp_path / "batch.npz", image=np.ones((2, 3), np.float32))
    report = api.analyze(source, data=tmp_path / "batch.npz")
    assert report.evidence is not None
    assert not report.evidence.synthetic


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("broken", ModelError, "no weights here"),
        ("number", UsageError, "returns int"),
        ("absent", UsageError, "cannot import"),
    ],
)
def test_bad_factories_are_explained(factories: str, name: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        api.analyze(f"{factories}:{name}")


@pytest.mark.parametrize("name", ["nets.py:build", "src/nets.py:build", "nets.py", "nets"])
def test_what_looks_like_code_gets_the_way_to_name_it(name: str) -> None:
    with pytest.raises(Fp16convError, match=r"package\.module:factory, importable from here: nets:build"):
        api.analyze(name)


def test_audit_says_what_a_factory_has_to_become() -> None:
    with pytest.raises(UsageError, match=r"torch\.export\.save"):
        find_models(["mynets.vit:build"])


def test_a_package_that_is_not_there_is_explained() -> None:
    with pytest.raises(UsageError, match="no_such_package"):
        api.analyze("no_such_package.nets:build")


def test_control_flow_over_numbers_is_explained() -> None:
    class Choice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2.0 if x.sum() > 0 else x

    with pytest.raises(ModelError, match="cannot capture"):
        fx.load(Choice(), (torch.ones(2),))


def test_a_module_keeps_its_training_mode() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).train()
    module[0].eval()
    fx.load(module, (torch.ones(1, 4),))
    assert (module.training, module[0].training, module[1].training) == (True, False, True)


def test_a_graph_module_is_a_source() -> None:
    traced = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 3), nn.ReLU()))
    conversion = fx.convert_module(traced, (torch.ones(2, 4),))
    assert isinstance(conversion.module, torch.fx.GraphModule)
    assert conversion.result is not None
    assert conversion.result.ok


def test_a_graph_module_that_was_exported_is_a_source() -> None:
    """It has no modes to switch, and `.half()` is tried on it all the same."""
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    module = torch.export.export(net, (torch.ones(2, 4),)).module()
    loaded = fx.load(module, (torch.ones(2, 4),))
    report = fx.analyze(loaded)
    assert report.half is not None
    assert report.half.within_tolerance


def test_objects_that_are_no_programs_are_refused() -> None:
    with pytest.raises(UsageError, match="'OrderedDict' is no PyTorch program"):
        fx.load(nn.Linear(2, 2).state_dict())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="'Linear' is a PyTorch program, and this takes ONNX models"):
        api.load(nn.Linear(2, 2))  # type: ignore[arg-type]


def test_what_is_a_torch_source() -> None:
    module = nn.Linear(2, 2)
    assert is_torch_source(module)
    assert is_torch_source(torch.export.export(module, (torch.ones(1, 2),)))
    assert is_torch_source(torch.fx.symbolic_trace(module))
    assert not is_torch_source("model.onnx")
    assert not is_torch_source(Path("folder/model.onnx"))


def test_modules_in_memory_go_through_the_same_verbs() -> None:
    exported = torch.export.export(nn.Linear(4, 4).eval(), (torch.ones(1, 4),))
    assert api.analyze(exported).decisions.fp16 == 1  # type: ignore[arg-type]
