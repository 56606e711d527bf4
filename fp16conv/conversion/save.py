"""Saves a converted model: staged beside the target, checked there, then renamed into place."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import onnx
import onnx_ir as ir

from fp16conv.collector import collection_paused
from fp16conv.conversion.loss_guard import carry_over
from fp16conv.conversion.passes.convert_sparse import sparse_halves
from fp16conv.conversion.tensors import Fp16Tensor, is_external
from fp16conv.conversion.workspace import iterate_graphs
from fp16conv.conversion.write_behind import WriteBehind
from fp16conv.errors import ConversionError, UsageError, unwritable
from fp16conv.files import make_temporary, replace_together
from fp16conv.frontends.external import FileTensor
from fp16conv.frontends.onnx import LoadedModel, external_files
from fp16conv.frontends.wire import serialize_in_pieces

__all__ = ["check_target", "save", "serialize"]

DATA_SUFFIX = ".data"  # of the weight file, which has the stem of the model
MAX_INLINE = 2**31 - 2**26  # bytes of weights; a protobuf file ends at 2 GiB and also holds the graph
MIN_EXTERNAL = 1024  # bytes; smaller tensors stay in the file when only the size forces the rest out
ALIGNMENT = 4096  # bytes, of tensors from 1 MiB on: runtimes map whole pages
ALIGNED_FROM = 2**20


def save(
    model: ir.Model,
    path: str | os.PathLike[str],
    loaded: LoadedModel,
    *,
    check: Callable[[Path], None] | None = None,
) -> tuple[Path, ...]:
    """Write a converted model atomically.

    The file is first written into a temporary folder beside `path`; only when it is complete and `check` has
    accepted it there does it get its name. Weights stay inline where they were inline and external where they
    were external (in one file, `<stem>.data`), unless inline weights exceed 2 GiB. One tensor at a time is in
    memory beyond what is inline.

    Args:
        model: what `convert` returned.
        path: file to write; replaced if it exists.
        loaded: the model it was converted from.
        check: called with the staged file; raises what should keep it from being saved.

    Returns:
        the files written, the model first.

    Raises:
        UsageError: the target is the input (by any name), its folder is missing or cannot be written, or
            its data file would replace one that belongs to another model.
        ConversionError: the disk is full or writing failed; nothing is left behind.
    """
    target = Path(path)
    folder = target.parent
    check_target(target, loaded)
    try:
        staging = make_temporary(folder)
    except OSError as e:
        raise unwritable("cannot be written", str(folder), e) from e
    try:
        staged = staging / target.name
        data = staging / f"{target.stem}{DATA_SUFFIX}"
        try:
            _write(model, staged, data, loaded)
        except OSError as e:
            why = e.strerror or f"{e}: the disk is full or a limit is reached"  # numpy only counts
            raise ConversionError("could not be written", where=str(target), why=why) from e
        if data.exists():
            _check_data_target(target, folder / data.name, loaded)
        if check is not None:
            check(staged)
        loaded.require_unchanged()
        names = [staged.name, data.name] if data.exists() else [staged.name]
        try:
            replace_together(staging, names, folder)
        except OSError as e:
            raise ConversionError("could not be written", where=str(target), why=e.strerror or str(e)) from e
        return tuple(folder / name for name in names)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@collection_paused()
def serialize(model: ir.Model, loaded: LoadedModel) -> onnx.ModelProto:
    """The converted model as protobuf with all weights inline, what onnx_ir cannot hold carried over."""
    proto = ir.serde.serialize_model(model)
    carry_over(loaded.proto, proto, sparse_halves(model))
    return proto


def check_target(target: Path, loaded: LoadedModel) -> None:
    """Refuse a target that cannot or must not be written, before any work.

    Raises:
        UsageError: it is the input or its weight file, has the name of one, is a folder or device, or lies in
            no folder.
    """
    folder = target.parent
    if not folder.is_dir():
        raise UsageError("no such folder", where=str(folder), hint="create it first")
    if target.is_dir():
        raise UsageError("is a folder", where=str(target), hint="name the .onnx file to write")
    if target.suffix == DATA_SUFFIX:
        raise UsageError(
            "is the name that a weight file gets", where=str(target), hint="name the .onnx file to write"
        )
    if target.exists() and not target.is_file():  # a rename would replace /dev/null itself
        raise UsageError("is no regular file", where=str(target), hint="name the .onnx file to write")
    if _is_same(target, loaded.path):
        raise UsageError(
            "output and input are the same file", where=str(target), hint="the input is never overwritten"
        )
    for source in external_files(loaded.proto, loaded.path):
        if _is_same(target, source):
            raise UsageError("is the input's weight file", where=str(target), hint="choose another name")


def _check_data_target(target: Path, data: Path, loaded: LoadedModel) -> None:
    """A weight file may only be replaced together with the model it belongs to."""
    if not os.path.lexists(data):
        return
    hint = "choose another output name or folder, or remove the file if no model uses it"
    if any(_is_same(data, source) for source in external_files(loaded.proto, loaded.path)):
        raise UsageError("is the input's weight file", where=str(data), hint=hint)
    owner = onnx.ModelProto()
    with contextlib.suppress(OSError, ValueError, onnx.checker.ValidationError):
        owner = onnx.load(target, load_external_data=False)
    if not any(_is_same(data, file) for file in external_files(owner, target)):
        raise UsageError("exists and belongs to another model", where=str(data), hint=hint)


def _is_same(first: Path, second: Path) -> bool:
    """Whether both names lead to one file, through symbolic or hard links too."""
    try:
        return first.samefile(second)
    except OSError:
        return first.resolve() == second.resolve()


def _write(model: ir.Model, path: Path, data: Path, loaded: LoadedModel) -> None:
    slots = _chosen(model)
    placed: list[tuple[_Slot, ir.TensorProtocol]] = []
    try:
        if slots:
            with WriteBehind(data) as file:
                for slot in slots:
                    tensor = slot.get()
                    external = _append(tensor, file, data)
                    placed.append((slot, tensor))
                    slot.set(external)
        proto = serialize(model, loaded)
    finally:
        for slot, tensor in placed:
            slot.set(tensor)
    with path.open("wb") as file:
        file.writelines(serialize_in_pieces(proto))
        file.flush()
        os.fsync(file.fileno())


def _append(tensor: ir.TensorProtocol, file: WriteBehind, data: Path) -> ir.ExternalTensor:
    if tensor.nbytes >= ALIGNED_FROM and file.size % ALIGNMENT:
        file.write(bytes(ALIGNMENT - file.size % ALIGNMENT))
    offset = file.size
    for chunk in tensor.chunks() if isinstance(tensor, (FileTensor, Fp16Tensor)) else [tensor.tobytes()]:
        file.write(chunk)
    return ir.ExternalTensor(
        data.name,
        offset,
        file.size - offset,
        tensor.dtype,
        shape=ir.Shape([int(d) for d in tensor.shape.numpy()]),
        name=tensor.name or "",
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
        base_dir=data.parent,
    )


class _Slot(Protocol):
    """A place in the model that holds a tensor."""

    def get(self) -> ir.TensorProtocol: ...

    def set(self, tensor: ir.TensorProtocol) -> None: ...


@dataclass(frozen=True)
class _Initializer:
    value: ir.Value

    def get(self) -> ir.TensorProtocol:
        assert self.value.const_value is not None
        return self.value.const_value

    def set(self, tensor: ir.TensorProtocol) -> None:
        self.value.const_value = tensor


@dataclass(frozen=True)
class _Attribute:
    node: ir.Node
    name: str

    def get(self) -> ir.TensorProtocol:
        return self.node.attributes[self.name].as_tensor()

    def set(self, tensor: ir.TensorProtocol) -> None:
        doc_string = self.node.attributes[self.name].doc_string
        attr = ir.Attr(self.name, ir.AttributeType.TENSOR, tensor, doc_string=doc_string)
        self.node.attributes[self.name] = attr


def _slots(model: ir.Model) -> Iterator[_Slot]:
    for graph in iterate_graphs(model):
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield _Initializer(value)
        for node in graph:
            for attr in node.attributes.values():
                if not attr.is_ref() and attr.type is ir.AttributeType.TENSOR:
                    yield _Attribute(node, attr.name)


def _chosen(model: ir.Model) -> list[_Slot]:
    """The tensors that go into the data file."""
    slots = [slot for slot in _slots(model) if slot.get().dtype is not ir.DataType.STRING]
    external = [slot for slot in slots if is_external(slot.get())]
    inline = [slot for slot in slots if not is_external(slot.get())]
    if sum(slot.get().nbytes for slot in inline) <= MAX_INLINE:
        return external
    return [slot for slot in slots if slot in external or slot.get().nbytes >= MIN_EXTERNAL]
