"""Mutations of archives: .npz files and the .pt2 files of torch.export."""

from __future__ import annotations

import io
import json
import pickle
import warnings
import zipfile
from typing import Any, Final

import numpy as np

from benchmarks.mutations.trees import edit_tree
from benchmarks.mutations.values import TEXTS, Rng, pick, spoil

__all__ = ["edit_archive", "edit_npz"]

CANARY: Final = "FP16CONV_FUZZ_CANARY"
"""Name of an environment variable with the file that exists once code from a mutated file ran."""
BOMB: Final = 300 << 20  # bytes that a member of 300 KB unpacks to

_EXPRESSIONS: Final = (
    "__import__('os').system('id')",
    "().__class__.__base__.__subclasses__()",
    "Symbol('s0').func.__globals__",
    "(lambda: 1)()",
    "9**9**9**9",
    "2**(10**9)",
    "factorial(10**6)",
    "(" * 5000 + ")" * 5000,
    "-" * 20_000 + "1",
    "s0" + "+s0" * 20_000,
    "Max(" * 300 + "1" + ")" * 300,
    "s0\ns1",
    "[s0 for s0 in ()]",
    "Pow(10, Pow(10, 10))",
    "Mod(s0, 0)",
    "1/0",
    "",
    "s" * 100_000,
    "True",
    "'a'",
    "zoo",
    "oo",
    "1e999",
    "Integer(1) << 10**9",
    "LShift(1, 10**9)",
)
_TARGETS: Final = (
    "torch.ops.aten.relu.default",
    "torch.ops.aten.add.Tensor",
    "torch.ops.aten.__class__.mro",
    "torch.ops.load_library",
    "torch.ops.aten.nothing.default",
    "os.system",
    "torch.load",
    "torch.hub.load",
    "_operator.attrgetter",
    "_operator.add",
    "math.factorial",
    "torch.sym_sum",
    "builtins.eval",
    "#torch.hub:#load",
    "torch.ops.higher_order.cond",
    "torch.ops.aten..default",
)


class _Code:
    """Unpickled, it would leave a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (f"import os; open(os.environ[{CANARY!r}], 'w').close()",)


def edit_archive(content: bytes, rng: Rng) -> bytes:
    """Return a mutated copy of a .pt2 file.

    Args:
        content: the seed.
        rng: same state, same bytes.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    for _ in range(int(pick((1, 1, 1, 2, 3), rng))):
        _edit_member(members, rng)
    return _finish(members, rng)


def _edit_member(members: list[tuple[str, bytes]], rng: Rng) -> None:
    if not members:
        return
    programs = [i for i, (name, _) in enumerate(members) if name.endswith(".json")]
    kind = int(rng.integers(12))
    at = pick(programs, rng) if programs and kind < 7 else int(rng.integers(len(members)))
    name, data = members[at]
    if kind < 7 and programs:
        try:
            tree = json.loads(data)
        except ValueError:
            return
        tree = edit_tree(tree, rng) if kind < 4 else _plant(tree, kind, rng)
        members[at] = name, json.dumps(tree).encode("utf-8", "replace")
    elif kind == 7:
        members[at] = name, spoil(data, rng)
    elif kind == 8:
        folder, _, leaf = name.rpartition("/")
        names = ("custom_obj_0", "weight_0", "../../evil", leaf, "x.so", "model.json", *TEXTS)
        members.insert(at, (f"{folder}/{pick(names, rng)}", data))
    elif kind == 9:
        members[at] = name, _content(data, rng)
    elif kind == 10:
        del members[at]
    else:
        other = int(rng.integers(len(members)))
        members[at], members[other] = (name, members[other][1]), (members[other][0], data)


def _content(old: bytes, rng: Rng) -> bytes:
    if rng.random() < 0.05:
        return bytes(BOMB)
    return bytes(pick((b"", pickle.dumps(_Code()), rng.bytes(50), old * 3), rng))


def _plant(tree: Any, kind: int, rng: Rng) -> Any:
    """Put a hostile text where the exported program names operators, sizes or files."""
    keys, texts = {
        4: (("target",), _TARGETS),
        5: (("expr_str",), _EXPRESSIONS),
        6: (
            ("path_name", "use_pickle", "name", "arg", "torch_fn", "stack_trace", "in_spec", "out_spec"),
            TEXTS,
        ),
    }[kind]
    places: list[tuple[Any, str]] = []
    stack = [tree]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            places += [(item, key) for key in keys if key in item]
            stack += item.values()
        elif isinstance(item, list):
            stack += item
    if places:
        owner, key = pick(places, rng)
        owner[key] = True if key == "use_pickle" else pick(texts, rng)
    return tree


def edit_npz(content: bytes, rng: Rng) -> bytes:
    """Return a mutated copy of a .npz file."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    at = int(rng.integers(len(members)))
    name, data = members[at]
    kind = int(rng.integers(8))
    if kind <= 2:
        members[at] = name, _with_header(data, rng)
    elif kind == 3:
        members[at] = name, spoil(data, rng)
    elif kind == 4:
        members[at] = f"{pick((*TEXTS, 'x.npy', 'y.npy'), rng)}.npy", data
    elif kind == 5:
        objects = io.BytesIO()
        np.save(objects, np.array([_Code()], object), allow_pickle=True)
        members[at] = name, objects.getvalue()
    elif kind == 6:
        members[at] = name, data + bytes(BOMB if rng.random() < 0.05 else int(pick((1, 1000), rng)))
    else:
        del members[at]
    return _finish(members, rng)


def _with_header(data: bytes, rng: Rng) -> bytes:
    """The array with another header: an astronomic shape, another type, code instead of a literal."""
    shape = pick(
        ("(2,)", "(-1,)", f"({2**40},)", f"({2**62}, {2**62})", "()", "(0,)", "'x'", "(1,)*99", "(2, 4)"), rng
    )
    kind = pick(
        ("'<f4'", "'|O'", "'<f2'", "'<i8'", "'|V8'", "'<U5'", "[('a', '<f4')]", "'<M8[s]'", "'x'", "3"), rng
    )
    text = f"{{'descr': {kind}, 'fortran_order': {pick(('True', 'False', '1'), rng)}, 'shape': {shape}}}"
    text = pick((text, text, text, text + "#" * 70_000, "__import__('os')", "[" * 9000), rng)
    body = (text + "\n").encode()
    major = int(pick((1, 2, 3, 9), rng))
    size = len(body).to_bytes(2 if major == 1 and len(body) < 65536 else 4, "little")
    return b"\x93NUMPY" + bytes((major, 0)) + size + body + data[-32:]


def _finish(members: list[tuple[str, bytes]], rng: Rng) -> bytes:
    packed = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(packed, "w") as archive:
        warnings.simplefilter("ignore")  # of names that are there twice
        for name, data in members:
            is_large = len(data) > 1 << 20
            method = zipfile.ZIP_DEFLATED if is_large or rng.random() < 0.2 else zipfile.ZIP_STORED
            archive.writestr(zipfile.ZipInfo(name.replace("\0", "\u2400") or "x"), data, method)
    content = packed.getvalue()
    return spoil(content, rng) if rng.random() < 0.1 else content
