"""SyncWatch: sees every operation of a command, and tells which would wait for the device (torch).

One rule for all devices. On a CPU both sides of a copy are on the CPU: there the registered host buffers
stand for pinned memory, and what an upload or a download copies is taken to cross. Of what crosses, the host
side must be registered, both sides in one piece, and the copy not blocking.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, TextIO

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from runner.spans import span_name
from runner.sync_check import SyncCheck, SyncFinding, is_allowed

SYNC_WARNING = "called a synchronizing CUDA operation"
_HEARD = "waits for the device, says torch's sync-debug mode"
_READS = frozenset(
    {
        "item",
        "_local_scalar_dense",
        "is_nonzero",
        "nonzero",
        "nonzero_numpy",
        "masked_select",
        "equal",
        "argwhere",
    }
    | {"_unique", "_unique2", "unique_dim", "unique_consecutive"}
)
# Seen as calls only: a CPU tensor answers them without any operation.
_READING_CALLS = frozenset({"tolist", "numpy", "cpu", "__array__"})
_INDEXING = frozenset({"index", "index_put", "index_put_"})
_WITHOUT_VALUES = ("new_", "empty_like", "zeros_like", "ones_like", "full_like")
_CROSSING_COMMANDS = frozenset({"upload", "download"})


class SyncFoundError(Exception):
    """The first finding of a command, where findings are errors."""


class SyncWatch:
    """`host`: the host sides of all buffers; memory that is none of theirs does not count as pinned.

    `findings` since the last `clear`, in the order in which they were first met.
    """

    def __init__(self, host: Iterable[torch.Tensor]) -> None:
        self.mode: SyncCheck = "off"
        self.step_id = -1
        self._pinned = frozenset(map(_storage, host)) - {0}  # an empty tensor has no memory
        self._command = ""
        self._operation = ""
        self._found: dict[tuple[str, str, str], tuple[int, int]] = {}
        self._first_of_command: SyncFinding | None = None
        self._show_warning = warnings.showwarning

    @property
    def findings(self) -> tuple[SyncFinding, ...]:
        """What torch alone says of a place is left out where we know better."""
        told = {(command, place) for command, place, what in self._found if what != _HEARD}
        return tuple(
            SyncFinding(*key, *seen)
            for key, seen in self._found.items()
            if key[2] != _HEARD or key[:2] not in told
        )

    def clear(self) -> None:
        self._found.clear()

    @contextmanager
    def over(self, command: Sequence[str | int]) -> Iterator[None]:
        """Watch one command. SyncFoundError at its end, where findings are errors and it had one."""
        self._operation, self._command = str(command[0]), span_name(command) or str(command[0])
        self._first_of_command = None
        with _Calls(self), _Operations(self):
            yield
        if self.mode == "error" and self._first_of_command is not None:
            raise SyncFoundError(self._first_of_command.text)

    def note(self, what: str) -> None:
        """A wait here and now, unless this place may."""
        place = _place()
        if is_allowed(self._operation, place):
            return
        key = (self._command, place, what)
        first_step_id, count = self._found.get(key, (self.step_id, 0))
        self._found[key] = (first_step_id, count + 1)
        if self._first_of_command is None:
            self._first_of_command = SyncFinding(*key, first_step_id, count + 1)

    def hear(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        """Stands in for `warnings.showwarning` while torch warns of every wait."""
        if SYNC_WARNING in str(message):
            self.note(_HEARD)
        else:
            self._show_warning(message, category, filename, lineno, file, line)

    def see(self, name: str, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        """An operation that ran."""
        if name == "copy_":
            self._see_copy(args[0], args[1], bool(kwargs.get("non_blocking", (*args, False)[2])))
        elif name == "lift_fresh":
            self.note("makes a tensor of host values, which are in no pinned memory")
        elif _reads(name, args, kwargs):
            self.note(f"takes a value to the host ({name})")
        elif isinstance(result, torch.Tensor) and not name.startswith(_WITHOUT_VALUES):
            self._see_result(args, result)

    def _see_copy(self, target: torch.Tensor, source: torch.Tensor, is_non_blocking: bool) -> None:
        if not self._crosses(target, source):
            return
        host = target if self._is_download(target, source) else source
        if _storage(host) not in self._pinned:
            self.note("copies from or to memory that is not pinned")
        if not (source.is_contiguous() and target.is_contiguous()):
            self.note("copies a strided view")
        if not is_non_blocking:
            self.note("copies and waits until that is done")

    def _crosses(self, target: torch.Tensor, source: torch.Tensor) -> bool:
        if self._operation in _CROSSING_COMMANDS or target.device != source.device:
            return True
        return self._is_pinned(target) != self._is_pinned(source)

    def _is_download(self, target: torch.Tensor, source: torch.Tensor) -> bool:
        if target.device != source.device:
            return target.device.type == "cpu"
        return self._operation == "download" or self._is_pinned(target)

    def _see_result(self, args: Sequence[Any], result: torch.Tensor) -> None:
        """A new tensor made of one on the other side; views of it are not new."""
        for given in _tensors(args):
            if given.device.type != result.device.type:
                to_host = result.device.type == "cpu"
                self.note(
                    "takes a tensor to the host" if to_host else "copies from memory that is not pinned"
                )
            elif self._is_pinned(given) and not self._is_pinned(result):
                self.note("copies a host buffer to memory that is not pinned")

    def _is_pinned(self, tensor: torch.Tensor) -> bool:
        return _storage(tensor) in self._pinned


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, watch: SyncWatch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watch = watch

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._watch.see(func.overloadpacket.__name__, args, kwargs or {}, result)
        return result


class _Calls(TorchFunctionMode):
    def __init__(self, watch: SyncWatch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _READING_CALLS:
            self._watch.note(f"takes a tensor to the host ({name})")
        return func(*args, **(kwargs or {}))


def _reads(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether the shape or the value of a result must be known to the host."""
    if name in _READS or (name == "where" and len(args) == 1):
        return True
    if name == "repeat_interleave":
        return isinstance(args[-1], torch.Tensor) and kwargs.get("output_size") is None
    return name in _INDEXING and any(
        index.dtype in (torch.bool, torch.uint8) for index in _tensors([args[1]])
    )


def _tensors(args: Sequence[Any]) -> Iterator[torch.Tensor]:
    """Those among arguments, and in lists among them."""
    for given in args:
        if isinstance(given, torch.Tensor):
            yield given
        elif isinstance(given, (list, tuple)):
            yield from (item for item in given if isinstance(item, torch.Tensor))


def _storage(tensor: torch.Tensor) -> int:
    """Where its memory begins; 0 of one that tells nobody, as oneDNN's reordered weights do."""
    return 0 if tensor.is_mkldnn else tensor.untyped_storage().data_ptr()


def _place() -> str:
    """The nearest function of ours that is at work, or `transformers` if that is nearer."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.split(".")[0] == "transformers":
            return "transformers"
        if name.startswith("runner.") and name != __name__:
            return f"{name.replace('.', '/')}.py:{frame.f_code.co_qualname}"
        frame = frame.f_back
    return "?"
