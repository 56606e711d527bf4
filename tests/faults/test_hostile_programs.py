"""Exported programs from strangers: refused by name and reason, nothing in them run or unpacked."""

from __future__ import annotations

import io
import json
import logging
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fp16conv import fx  # noqa: E402
from fp16conv.errors import ModelError  # noqa: E402
from fp16conv.frontends.fx.sizes import is_arithmetic  # noqa: E402

Members = list[tuple[str, bytes]]


class Twice(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[0] * 2, -1) * 0.5


@pytest.fixture(scope="module")
def members() -> Members:
    size = torch.export.Dim("size", min=2, max=64)
    program = torch.export.export(Twice(), (torch.ones(4, 6),), dynamic_shapes={"x": {0: size}})
    packed = io.BytesIO()
    torch.export.save(program, packed)
    with zipfile.ZipFile(packed) as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]


def _write(members: Members, path: Path, method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def _edited(members: Members, edit: Callable[[Any], object]) -> Members:
    found = []
    for name, content in members:
        if name.endswith("models/model.json"):
            tree = json.loads(content)
            edit(tree)
            content = json.dumps(tree).encode()
        found.append((name, content))
    return found


def test_a_size_that_is_a_product_is_read(members: Members, tmp_path: Path) -> None:
    assert fx.load(_write(members, tmp_path / "m.pt2")).graph.ops


@pytest.mark.parametrize(
    "size",
    [
        "9**9**9**9",
        "2**(10**9)",
        "Pow(10, Pow(10, 10))",
        "Pow(Pow(Integer(10), Integer(60)), Integer(60))",
        "LShift(1, 10**9)",
        "Pow(Integer(2), Mul(Integer(1000), Integer(1000000)))",
        "1" * 5000,
        "(" * 5000 + ")" * 5000,
        "-" * 20_000 + "1",
        "s0" + "+s0" * 20_000,
        "Max(" * 300 + "1" + ")" * 300,
        "factorial(10**6)",
        "s0\ns1",
        "x!",
        "__name__",
        "Symbol('__x__')",
        "Symbol('a b')",
        "",
    ],
)
def test_sizes_that_would_never_end_are_no_arithmetic(size: str) -> None:
    assert not is_arithmetic(size)


@pytest.mark.parametrize(
    "size",
    [
        "Symbol('s77', positive=True, integer=True)",
        "Add(Mul(Integer(2), Symbol('s0', integer=True)), Integer(-1))",
        "Pow(Symbol('s0', integer=True), Integer(2))",
        "Pow(Symbol('s0'), Rational(1, 2))",
        "FloorDiv(Symbol('s0'), Integer(2))",
        "Equality(Mod(Symbol('s0'), Integer(8)), Integer(0))",
        "2*s0 + s1**2",
        "Float('1.5', precision=53)",
        "int_oo",
    ],
)
def test_sizes_as_torch_writes_them_are(size: str) -> None:
    assert is_arithmetic(size)


def test_archives_that_unpack_without_end(members: Members, tmp_path: Path) -> None:
    bomb = [*members, ("archive/data/weights/big", bytes(1 << 29))]
    with pytest.raises(ModelError, match="times its size"):
        fx.load(_write(bomb, tmp_path / "m.pt2", zipfile.ZIP_DEFLATED))


def test_json_that_is_nested_too_deeply(members: Members, tmp_path: Path) -> None:
    deep = [(n, b"[" * 100_000 if n.endswith("model.json") else c) for n, c in members]
    with pytest.raises(ModelError, match="is not JSON"):
        fx.load(_write(deep, tmp_path / "m.pt2"))


def test_a_member_that_is_not_there(members: Members, tmp_path: Path) -> None:
    def edit(tree: Any) -> None:
        tree["extra"] = {"use_pickle": True, "path_name": "nowhere"}

    with pytest.raises(ModelError, match="nowhere', which it does not hold"):
        fx.load(_write(_edited(members, edit), tmp_path / "m.pt2"))


def test_a_member_whose_checksum_is_wrong(members: Members, tmp_path: Path) -> None:
    path = _write(members, tmp_path / "m.pt2")
    content = path.read_bytes()
    at = content.index(b'"schema_version"')
    path.write_bytes(content[:at] + b'"SCHEMA_VERSION"' + content[at + 16 :])
    with pytest.raises(ModelError, match=r"(cannot be unpacked|truncated)"):
        fx.load(path)


def test_what_torch_says_of_a_broken_file_is_no_traceback(
    members: Members, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def edit(tree: Any) -> None:
        del tree["graph_module"]["graph"]

    with pytest.raises(ModelError, match="cannot be loaded"):
        fx.load(_write(_edited(members, edit), tmp_path / "m.pt2"))
    assert capfd.readouterr().err == ""
    assert logging.root.manager.disable == logging.NOTSET
