"""Inputs of a model: the user's own (`.npz` files) or made up, one batch at a time."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fp16conv.errors import DataError, UsageError
from fp16conv.execution.archives import read_arrays
from fp16conv.execution.synthesis import DEFAULT_SIZES, OpenSizes, Recipe, make_batch, plan_inputs
from fp16conv.graph import Container, DataType, ModelGraph, Value

__all__ = ["Batch", "FeedSource", "load_feeds", "parse_range", "parse_shape", "synthesize"]

Batch = dict[str, Any]

MAX_MADE_UP = 2**29  # elements of one made-up batch (4 GiB while it is made)

_NUMPY: Mapping[DataType, tuple[str, ...]] = {
    DataType.FLOAT: ("float32",),
    DataType.FLOAT16: ("float16",),
    DataType.BFLOAT16: ("float32", "uint16"),
    DataType.DOUBLE: ("float64",),
    DataType.BOOL: ("bool",),
    **{t: (t.value,) for t in DataType if t.is_integer},
}


@dataclass(frozen=True)
class FeedSource:
    """Batches of inputs, made or read anew on each iteration.

    Args:
        origin: `real` for the user's data, `synthetic` for made-up inputs.
        description: one line for reports.
        is_example: made by the model's author, not by us.
    """

    origin: Literal["real", "synthetic"]
    description: str
    _makers: tuple[Callable[[], Batch], ...] = field(repr=False)
    _label_readers: tuple[Callable[[], Any], ...] = field(default=(), repr=False)
    is_example: bool = False

    def __iter__(self) -> Iterator[Batch]:
        for make in self._makers:
            yield make()

    def __len__(self) -> int:
        return len(self._makers)

    @property
    def labels(self) -> list[Any] | None:
        """Class labels per batch, None where the data carries none."""
        return [read() for read in self._label_readers] or None

    def describe(self) -> str:
        """One line for reports: where the numbers come from."""
        return self.description


def load_feeds(paths: Sequence[Path | str], graph: ModelGraph, *, labels: str = "") -> FeedSource:
    """Read batches from `.npz` files, or from folders of them; one file is one batch, read when it is needed.

    Args:
        paths: files and folders; a folder's files in the order of their names.
        graph: the model; arrays carry the names, dtypes and ranks of its inputs. The items of a sequence
            input `x` are `x.0`, `x.1` ...
        labels: name of one more array in every file, the class labels; empty where there is none.

    Returns:
        A source of origin `real`. The first file is checked here, the others when they are read.

    Raises:
        DataError: nothing there, not an .npz file, or names, dtypes, ranks or shapes do not fit the model.
    """
    files = [file for path in paths for file in _expand(Path(path))]
    if not files:
        raise DataError("no data files given", hint="name at least one .npz file or a folder of them")
    _read(files[0], graph, labels)
    names = files[0].name if len(files) == 1 else f"{files[0].name} ... {files[-1].name}"
    count = f"{len(files)} batch" + ("es" if len(files) > 1 else "")
    return FeedSource(
        "real",
        f"real data, {count} ({names})",
        tuple(partial(_read, file, graph, labels) for file in files),
        tuple(partial(_read_labels, file, labels) for file in files) if labels else (),
    )


def synthesize(
    graph: ModelGraph,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    batches: int = 2,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    open_sizes: OpenSizes = DEFAULT_SIZES,
) -> FeedSource:
    """Make up inputs from types, shapes, declared ranges and the tables that integer inputs index.

    Dimensions the model leaves open get a default (see `fp16conv.execution.synthesis`); a symbolic name has
    one size throughout. Floats are uniform in a declared range, else standard normal with every 16th number
    four times as large. Integers stay inside the table a Gather reads with them; masks are mostly ones.

    Args:
        graph: the model.
        shapes: input name -> shape.
        ranges: input name -> (lowest, highest).
        batches: how many batches.
        seed: same seed, same numbers.
        dims: sizes of symbolic dimensions, by name.
        open_sizes: sizes of the dimensions that are left open.

    Returns:
        A source of origin `synthetic`; reading it raises DataError where a batch would be gigantic,
        ValidationError where an input has a type that cannot be made up.

    Raises:
        UsageError: a name is not an input of the model, or a shape contradicts the model.
    """
    shapes, ranges = dict(shapes or {}), dict(ranges or {})
    inputs = {graph.values[i].name: graph.values[i] for i in graph.main.inputs}
    for flag, given in (("--shape", shapes), ("--input-range", ranges)):
        for name in given:
            if name not in inputs:
                raise UsageError(
                    f"'{name}' is not an input of the model", where=flag, hint=_suggest(name, inputs)
                )
    for name, shape in shapes.items():
        if problem := _shape_problem(shape, inputs[name]):
            raise UsageError(problem, where=f"--shape {name}")
    recipes = plan_inputs(graph, shapes, ranges, dict(dims or {}), open_sizes)

    def maker(batch: int) -> Callable[[], Batch]:
        def make() -> Batch:
            _refuse_gigantic(recipes)
            return make_batch(recipes, np.random.default_rng((seed, batch)), batch)

        return make

    count = f"{batches} batch" + ("es" if batches > 1 else "")
    sizes = ", ".join(f"{r.name}={'x'.join(map(str, r.shape)) or 'scalar'}" for r in recipes)
    return FeedSource(
        "synthetic",
        f"synthetic data, {count}, seed {seed} ({sizes})",
        tuple(maker(batch) for batch in range(batches)),
    )


def _refuse_gigantic(recipes: Iterable[Recipe]) -> None:
    """Ask before memory is taken: a shape in a file can be any number."""
    total = 0
    for recipe in recipes:
        total += math.prod(recipe.shape) * (recipe.items or 1)
        if total > MAX_MADE_UP:
            raise DataError(
                f"the inputs would have more than {MAX_MADE_UP} elements",
                where=f"input '{recipe.name}' of shape {'x'.join(map(str, recipe.shape))}",
                hint="give real data with --data, or smaller sizes with --shape",
            )


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse `NAME=1x3x224x224` (`NAME=` or `NAME=scalar` for rank 0).

    Raises:
        UsageError: it does not have that form.

    Example:
        >>> parse_shape("image=1x3x224x224")
        ('image', (1, 3, 224, 224))
    """
    name, sep, value = text.rpartition("=")
    parts = [] if value in ("", "scalar") else value.replace(",", "x").lower().split("x")
    if not sep or not name or not all(part.strip().isdigit() for part in parts):
        raise UsageError(
            f"'{text}' is not a shape", where="--shape", hint="write NAME=1x3x224x224, sizes joined by x"
        )
    return name, tuple(int(part) for part in parts)


def parse_range(text: str) -> tuple[str, tuple[float, float]]:
    """Parse `NAME=LO:HI`.

    Raises:
        UsageError: it does not have that form, or LO > HI.

    Example:
        >>> parse_range("image=0:1")
        ('image', (0.0, 1.0))
    """
    name, sep, value = text.rpartition("=")
    low, colon, high = value.partition(":")
    try:
        lo, hi = float(low), float(high)
    except ValueError:
        lo, hi = 0.0, -1.0
        sep = ""
    if not sep or not colon or not name or not np.isfinite((lo, hi)).all():
        raise UsageError(
            f"'{text}' is not a range", where="--input-range", hint="write NAME=LO:HI, e.g. x=0:1"
        )
    if lo > hi:
        raise UsageError(
            f"the range {low}:{high} is empty",
            where=f"--input-range {name}",
            hint=f"did you mean {name}={high}:{low}?",
        )
    return name, (lo, hi)


def _expand(path: Path) -> list[Path]:
    if path.is_dir():
        files = sorted(path.glob("*.npz"))
        if not files:
            raise DataError("the folder holds no .npz file", where=str(path))
        return files
    if not path.exists():
        raise DataError("no such file or folder", where=str(path), hint="check --data")
    return [path]


def _read(file: Path, graph: ModelGraph, labels: str) -> Batch:
    arrays = _load(file)
    if labels:
        _pop_labels(arrays, file, labels)
    return _check(arrays, graph, str(file))


def _read_labels(file: Path, labels: str) -> Any:
    return _pop_labels(_load(file), file, labels)


def _pop_labels(arrays: Batch, file: Path, labels: str) -> Any:
    if labels not in arrays:
        raise DataError(
            f"holds no array '{labels}' with the labels",
            where=str(file),
            hint=_suggest(labels, arrays, "arrays"),
        )
    return arrays.pop(labels)


def _load(file: Path) -> Batch:
    try:
        return read_arrays(file)
    except (OSError, ValueError) as error:
        raise DataError(
            "is not a readable .npz file",
            where=str(file),
            why=str(error),
            hint="use numpy.savez(FILE, input_name=array, ...) with plain arrays",
        ) from None


def _check(arrays: Mapping[str, Any], graph: ModelGraph, where: str) -> Batch:
    inputs = {graph.values[i].name: graph.values[i] for i in graph.main.inputs}
    batch: Batch = {}
    used: set[str] = set()
    for name, value in inputs.items():
        if value.container is Container.SEQUENCE or (
            value.container is Container.OPTIONAL and name not in arrays
        ):
            items = [key for key in arrays if _item(key, name)]
            batch[name] = [arrays[key] for key in sorted(items, key=lambda key: int(key[len(name) + 1 :]))]
            used.update(items)
            if value.container is Container.OPTIONAL and not items:
                batch[name] = None
        elif name in arrays:
            used.add(name)
            batch[name] = _check_array(arrays[name], value, where)
    extra = [name for name in arrays if name not in used]
    if extra:
        missing = [name for name in inputs if name not in batch]
        raise DataError(
            f"'{extra[0]}' is not an input of the model",
            where=where,
            hint=_suggest(extra[0], missing or inputs),
        )
    for name, value in inputs.items():
        if name not in batch and value.id not in graph.defaults:
            raise DataError(
                f"input '{name}' is missing", where=where, hint=f"the model needs {_listing(inputs)}"
            )
    return batch


def _item(key: str, name: str) -> bool:
    return key.startswith(f"{name}.") and key[len(name) + 1 :].isdigit()


def _check_array(array: Any, value: Value, where: str) -> Any:
    where = f"{where}: input '{value.name}'"
    if value.dtype is DataType.STRING and array.dtype.kind in "US":
        array = array.astype(object)
    elif (wanted := _NUMPY.get(value.dtype)) is not None and array.dtype.name not in wanted:
        raise DataError(
            f"has dtype {array.dtype.name}, the model wants {wanted[0]}",
            where=where,
            hint=f"save it with .astype('{wanted[0]}')",
        )
    if problem := _shape_problem(array.shape, value):
        raise DataError(problem, where=where)
    return array


def _shape_problem(shape: tuple[int, ...], value: Value) -> str:
    if value.shape is None:
        return ""
    wanted = "x".join("?" if dim is None else str(dim) for dim in value.shape) or "a scalar"
    got = "x".join(map(str, shape)) or "a scalar"
    if len(shape) != len(value.shape):
        return f"has rank {len(shape)} ({got}), the model wants rank {len(value.shape)} ({wanted})"
    if any(isinstance(dim, int) and 0 <= dim != size for dim, size in zip(value.shape, shape, strict=True)):
        return f"has shape {got}, the model wants {wanted}"
    return ""


def _suggest(name: str, known: Iterable[str], kind: str = "inputs") -> str:
    names = list(known)
    close = difflib.get_close_matches(name, names, 1, 0.5)
    return f"did you mean '{close[0]}'?" if close else f"the {kind} are {_listing(names)}"


def _listing(names: Iterable[str]) -> str:
    names = [f"'{name}'" for name in names]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
