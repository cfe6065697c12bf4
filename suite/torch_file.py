"""One dense tensor out of a file of torch.save, without torch and without running anything in the file.

The pickle inside is read with a table of the few names that a tensor needs; any other name is refused, so
there is nothing to execute, and the declared shape is known before a value is read.
"""

from __future__ import annotations

import pickle
import pickletools
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

_MAX_PICKLE_BYTES = 64 * 1024  # of a tensor it takes about 200

# What torch.save writes for a tensor. No opcode here can set an attribute or make an object of a class.
_OPCODES = frozenset(
    {
        *("PROTO", "GLOBAL", "BINPERSID", "REDUCE", "STOP", "MARK"),
        *("BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
        *("BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "NEWTRUE", "NEWFALSE", "NONE"),
        *("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_TUPLE"),
        *("EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "APPEND", "APPENDS"),
    }
)

_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}


class NotATensor(Exception):
    """What the file holds instead of one dense tensor, in words that follow "got"."""


@dataclass(frozen=True, slots=True)
class Storage:
    """A run of `count` values of `dtype`, under `key` in the file; which device it came from is not asked."""

    dtype: str
    key: str
    count: int


@dataclass(frozen=True, slots=True)
class TensorView:
    """A tensor as declared: value (i, j) lies at offset + i * strides[0] + j * strides[1] of its storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class TorchFile:
    """A file's content. NotATensor where that is not one dense tensor, or is damaged."""

    def __init__(self, content: bytes) -> None:
        try:
            self._zip = zipfile.ZipFile(BytesIO(content))
        except Exception as error:  # zipfile has no one error for what a made-up archive can be
            raise NotATensor(f"no archive of torch.save, or one cut short ({error})") from None
        self._folder = self._find_folder()
        self.view = _described(self._member("data.pkl", _MAX_PICKLE_BYTES))

    @property
    def byte_order(self) -> str:
        """As numpy writes it."""
        try:
            return ">" if self._member("byteorder", 16) == b"big" else "<"
        except NotATensor:
            return "<"  # files of older versions of torch do not say; they are little

    def read(self, item_bytes: int) -> bytes:
        """The bytes of the tensor's storage, exactly as many as it declares."""
        expected = self.view.storage.count * item_bytes
        values = self._member(f"data/{self.view.storage.key}", expected)
        if len(values) != expected:
            raise NotATensor(f"{len(values)} bytes where the tensor declares {expected}")
        return values

    def _find_folder(self) -> str:
        found = [name for name in self._zip.namelist() if name.endswith("/data.pkl")]
        if len(found) != 1:
            raise NotATensor("an archive that torch.save did not write")
        return found[0].removesuffix("data.pkl")

    def _member(self, name: str, max_bytes: int) -> bytes:
        """A member's bytes; one that would unfold to more than `max_bytes` is not read."""
        try:
            info = self._zip.getinfo(self._folder + name)
            if info.file_size > max_bytes:
                raise NotATensor(f"{info.file_size} bytes in {name}, where at most {max_bytes} belong")
            return self._zip.read(info)
        except KeyError:
            raise NotATensor(f"an archive without {name}") from None
        except NotATensor:
            raise
        except Exception as error:
            raise NotATensor(f"a damaged archive ({error})") from None


def _described(text: bytes) -> TensorView:
    """The tensor that a pickle describes."""
    _check_opcodes(text)
    try:
        found = _Description(BytesIO(text)).load()
    except NotATensor:
        raise
    except Exception as error:  # whatever a made-up pickle does to the pickle module
        raise NotATensor(f"no tensor of torch.save ({error})") from None
    if not isinstance(found, TensorView):
        raise NotATensor(f"a {type(found).__name__}, not a tensor")
    return found


def _check_opcodes(text: bytes) -> None:
    """Refuse what could run code or make the pickle module allocate more than the text is long."""
    try:
        for opcode, argument, _ in pickletools.genops(text):
            if opcode.name not in _OPCODES:
                raise NotATensor(f"more than a tensor (pickle operation {opcode.name})")
            if opcode.name.endswith("BINPUT") and int(argument or 0) > len(text):
                raise NotATensor("no tensor of torch.save (a memo out of range)")
    except (ValueError, IndexError) as error:
        raise NotATensor(f"no tensor of torch.save ({error})") from None


class _Description(pickle.Unpickler):
    """Knows a tensor's names by its own table; never imports a module."""

    def find_class(self, module: str, name: str) -> Any:
        if "sparse" in name:
            raise NotATensor("a sparse tensor")
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        try:
            return _NAMES[f"{module}.{name}"]
        except KeyError:
            raise NotATensor(f"more than a dense tensor of a usual type ({module}.{name})") from None

    def persistent_load(self, reference: Any) -> Storage:
        kind, dtype, key, _device, count = reference
        if kind != "storage" or not isinstance(key, str) or not _is_count(count):
            raise NotATensor("no tensor of torch.save")
        return Storage(str(dtype), key, count)


def _rebuild_tensor(
    storage: Any,
    offset: Any,
    shape: Any,
    strides: Any,
    _requires_grad: Any,
    _hooks: Any,
    metadata: Any = None,
) -> TensorView:
    """Its parts may be anything a pickle can hold."""
    if metadata:
        raise NotATensor(f"a lazily changed tensor ({metadata})")
    is_whole = isinstance(storage, Storage) and isinstance(shape, tuple) and isinstance(strides, tuple)
    if not is_whole or len(shape) != len(strides) or not all(map(_is_count, (offset, *shape, *strides))):
        raise NotATensor("a tensor whose shape makes no sense")
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if 0 not in shape and last >= storage.count:
        raise NotATensor(f"a tensor of shape {shape} over a storage of {storage.count} values")
    return TensorView(storage, offset, shape, strides)


def _rebuild_parameter(data: Any, *_rest: Any) -> Any:
    return data


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


_NAMES: Mapping[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor,
    "torch._utils._rebuild_parameter": _rebuild_parameter,
    "collections.OrderedDict": OrderedDict,
}
