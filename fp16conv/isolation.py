"""Native code that reads untrusted data, run where it can take nothing down: in a forked helper process."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import pickle
import signal
import threading
import warnings
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NoReturn, ParamSpec, TypeVar

__all__ = ["IsolationError", "isolated", "start_helper"]

SECONDS = 5.0  # of CPU that one call may take, and more for large inputs
BYTES_PER_SECOND = 100_000  # of input; onnx's inference does 50 times as much
PATIENCE = 60  # wall seconds waited per CPU second, however busy the machine is
MEMORY = 1 << 28  # bytes that one call may take, and more for large inputs
MEMORY_PER_BYTE = 16  # of input; a parsed model is a few times its file

P = ParamSpec("P")
T = TypeVar("T")

_CAN_FORK = hasattr(os, "fork") and os.path.exists("/proc/self/statm")


class IsolationError(Exception):
    """The work crashed, or was ended because it took too much time or memory."""


def isolated(work: Callable[P, T], size: int, /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in the helper, with limits on time and memory.

    Where the system cannot fork (outside Linux), the function is called in this process.

    Args:
        work: a function of a module; its arguments and result are pickled.
        size: bytes of input that it reads; the limits grow with them.
        args: positional arguments.
        kwargs: keyword arguments.

    Returns:
        what the function returns.

    Raises:
        IsolationError: it crashed, or took too much time or memory.
        OSError: the system has no room for another process.
        Exception: what the function raises.

    Example:
        >>> isolated(os.path.basename, 0, "a/b")
        'b'
        >>> isolated(os.abort, 0)
        Traceback (most recent call last):
            ...
        fp16conv.isolation.IsolationError: crashed (SIGABRT)
    """
    if not _CAN_FORK:
        return work(*args, **kwargs)
    seconds, memory = SECONDS + size / BYTES_PER_SECOND, MEMORY + MEMORY_PER_BYTE * size
    with _KEEPER.lock:
        failed, result = _KEEPER.helper().call(work, args, kwargs, seconds, memory)
    if not failed:
        return result  # type: ignore[no-any-return]
    if isinstance(result, MemoryError):
        raise IsolationError(f"took more than {memory >> 20} MiB of memory")
    raise result


def start_helper(inherits: frozenset[object] | None = None) -> None:
    """Fork the helper now, while the process is small, if it does not run already.

    Args:
        inherits: what this process has registered with native code, which a fork takes along: a helper that
            is not known to have that is replaced. None keeps any.

    Raises:
        OSError: the system has no room for another process.
    """
    if _CAN_FORK:
        with _KEEPER.lock:
            _KEEPER.helper(inherits)


class _Keeper:
    """The helper of this process; it ends with the process, whose end closes the pipe."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._helper: _Helper | None = None
        self._inherited: frozenset[object] = frozenset()

    def helper(self, inherits: frozenset[object] | None = None) -> _Helper:
        if self._helper is not None and inherits not in (None, self._inherited):
            self._helper.end()
        if self._helper is None or not self._helper.is_ready():
            self._helper, self._inherited = _Helper(), inherits or frozenset()
        return self._helper

    def forget(self) -> None:
        """In a fork of this process: the helper and whoever holds the lock are the parent's."""
        if self._helper is not None:
            self._helper.pipe.close()
        self.lock, self._helper = threading.Lock(), None


_KEEPER = _Keeper()
if _CAN_FORK:
    os.register_at_fork(after_in_child=_KEEPER.forget)


class _Helper:
    def __init__(self) -> None:
        self.pipe, theirs = map(_above_standard, Pipe())
        with warnings.catch_warnings():
            # Python warns of forks beside other threads; the child takes none of their locks.
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                self._process = os.fork()
            except OSError as error:
                self.pipe.close()
                theirs.close()
                why = error.strerror or str(error)
                raise OSError(error.errno, f"the helper process cannot be started: {why}") from error
        if self._process == 0:
            _live(theirs)
        theirs.close()
        self._is_usable = True

    def is_ready(self) -> bool:
        """Whether it waits for a call: not where one went wrong, or where others killed it since."""
        if self._is_usable and self.pipe.poll():  # nothing was asked: its end is closed
            self._is_usable = False
            self.end()
        return self._is_usable

    def call(self, work: object, args: object, kwargs: object, seconds: float, memory: int) -> Any:
        self._is_usable = False  # an interrupt leaves an answer behind that is not the next call's
        try:
            self.pipe.send((work, args, kwargs, seconds, memory))
            if not self.pipe.poll(seconds * PATIENCE):
                raise IsolationError(f"took more than {seconds * PATIENCE:.0f} s")
            answer = self.pipe.recv()
            self._is_usable = True
            return answer
        except (EOFError, OSError):
            number = -os.waitstatus_to_exitcode(self._wait())
            if number == signal.SIGXCPU:
                raise IsolationError(f"took more than {seconds:.0f} s of CPU time") from None
            name = signal.Signals(number).name if number > 0 else f"exit code {-number}"
            raise IsolationError(f"crashed ({name})") from None
        finally:
            if not self._is_usable:
                self.end()

    def end(self) -> None:
        """Kill it; it is not ready from then on."""
        self._is_usable = False
        self.pipe.close()
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process, signal.SIGKILL)
            self._wait()

    def _wait(self) -> int:
        process, self._process = self._process, 0
        with contextlib.suppress(ChildProcessError):  # the program waits for all children itself
            return os.waitpid(process, 0)[1]
        return 0


def _above_standard(end: Connection) -> Connection:
    """The same end under a number above 2: daemons close those, and whoever prints would write to it."""
    if end.fileno() > 2:
        return end
    fcntl = importlib.import_module("fcntl")  # not on every system
    with end:
        return Connection(fcntl.fcntl(end.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))


def _live(pipe: Connection) -> NoReturn:
    """Be the helper: answer until the other side is gone."""
    try:
        gc.disable()
        faulthandler.disable()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _let_go(pipe.fileno())
        while True:
            pipe.send(_answer(*pipe.recv()))
    finally:
        os._exit(0)


def _let_go(kept: int) -> None:
    """Hold none of the parent's files open: whoever waits for their end waits for the parent only."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number != kept:
            with contextlib.suppress(OSError):  # the one that lists them
                os.close(number)


def _answer(
    work: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any], seconds: float, memory: int
) -> tuple[bool, object]:
    _limit(seconds, memory)
    try:
        return False, work(*args, **kwargs)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return True, RuntimeError(f"{type(error).__name__}: {error}")
        return True, error


def _limit(seconds: float, memory: int) -> None:
    resource = importlib.import_module("resource")  # not on every system
    used = resource.getrusage(resource.RUSAGE_SELF)
    with open("/proc/self/statm", encoding="ascii") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    wanted = {
        resource.RLIMIT_CPU: int(used.ru_utime + used.ru_stime + seconds) + 1,
        resource.RLIMIT_AS: mapped + memory,
        resource.RLIMIT_CORE: 0,
    }
    for kind, soft in wanted.items():
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
