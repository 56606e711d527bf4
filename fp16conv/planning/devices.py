"""Devices whose roofline the planner knows, read from `rules/devices/*.toml`."""

from __future__ import annotations

import difflib
import reprlib
from dataclasses import dataclass
from pathlib import Path

from fp16conv._data import rules_dir
from fp16conv.errors import RuleError, UsageError
from fp16conv.files import read_toml

__all__ = ["DEFAULT_DEVICE", "Device", "device_names", "load_device"]

DEFAULT_DEVICE = "a10"


@dataclass(frozen=True, slots=True)
class Device:
    """What bounds the speed of a kernel on one device.

    Args:
        id: name of the file, e.g. `t4`.
        title: name for people.
        fp32_tflops: dense FP32 peak without Tensor Cores, 10^12 FLOP/s.
        fp16_tflops: dense FP16 Tensor Core peak with FP32 accumulation, 10^12 FLOP/s.
        bandwidth_gbps: memory bandwidth, 10^9 bytes/s.
        launch_us: fixed price of one kernel, microseconds.
        source: where the figures come from.
        tf32_tflops: dense TF32 peak, None where the device has no TF32.
        alignment_bytes: what the rows of FP16 matrices should be multiples of, None where unknown.
    """

    id: str
    title: str
    fp32_tflops: float
    fp16_tflops: float
    bandwidth_gbps: float
    launch_us: float
    source: str
    tf32_tflops: float | None = None
    alignment_bytes: int | None = None


def device_names() -> tuple[str, ...]:
    """Return the ids of the known devices, sorted.

    Example:
        >>> "t4" in device_names()
        True
    """
    return tuple(sorted(path.stem for path in (rules_dir() / "devices").glob("*.toml")))


def load_device(name: str = DEFAULT_DEVICE) -> Device:
    """Read one device by id, or from a TOML file of the user's own (a path ending in .toml).

    Raises:
        UsageError: no such device.
        RuleError: the file lacks a figure, or one is not a positive number.

    Example:
        >>> load_device("t4").fp16_tflops
        65.0
    """
    if name.endswith(".toml"):
        path = Path(name)
    else:
        names = device_names()
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(names)}"
            raise UsageError(f"unknown device '{name}'", hint=hint)
        path = rules_dir() / "devices" / f"{name}.toml"
    try:
        data = read_toml(path)
    except OSError as error:
        raise UsageError("cannot read the device file", where=str(path), why=str(error)) from error
    except ValueError as error:
        raise RuleError("not a valid TOML file", where=str(path), why=str(error)) from error

    def figure(key: str) -> float:
        value = data.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
            raise RuleError(f"'{key}' must be a positive number, got {reprlib.repr(value)}", where=str(path))
        return float(value)

    return Device(
        id=str(data.get("id", path.stem)),
        title=str(data.get("title", path.stem)),
        fp32_tflops=figure("fp32_tflops"),
        fp16_tflops=figure("fp16_tflops"),
        bandwidth_gbps=figure("bandwidth_gbps"),
        launch_us=figure("launch_us"),
        source=str(data.get("source", "")),
        tf32_tflops=figure("tf32_tflops") if "tf32_tflops" in data else None,
        alignment_bytes=int(figure("alignment_bytes")) if "alignment_bytes" in data else None,
    )
