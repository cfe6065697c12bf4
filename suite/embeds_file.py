"""prompt_embeds from a .safetensors or .pt file: one (rows, hidden) tensor, read without torch.

Weights only and device-free; the declared shape, type and size are checked before a value is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize, safe_open

from runner.core import FloatType
from runner.inputs.float_bits import is_finite, rounded
from suite.errors import SuiteError
from suite.torch_file import NotATensor, TensorView, TorchFile

_ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_SAFETENSORS_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_TENSOR_NAME = "prompt_embeds"
_MIB = 2**20

# Typed here, as the library does not: every tensor's name, type, shape and bytes.
_DESERIALIZE: Callable[[bytes], list[tuple[str, dict[str, bytes]]]] = deserialize


@dataclass(frozen=True, slots=True)
class FileRows:
    """A file's rows: `data` holds [num_rows, hidden_size] values of `cast_to`. `dtype` is the file's own."""

    path: Path
    data: bytes = field(repr=False)
    num_rows: int
    hidden_size: int
    dtype: str
    cast_to: FloatType = "float32"

    @property
    def note(self) -> str | None:
        """What was done to the values, for the report; None where nothing was."""
        if self.dtype == self.cast_to:
            return None
        return f"{self.path.name}: {self.dtype} rows cast to {self.cast_to}"


@dataclass(frozen=True, slots=True)
class _Expected:
    """What a file is held against; every refusal says it."""

    path: Path
    hidden_size: int
    max_mib: float

    def refusal(self, came: str, fix: str) -> SuiteError:
        return SuiteError(
            f"{self.path}: expected one dense tensor of floats of shape (rows, {self.hidden_size}), "
            f"got {came}: {fix}"
        )

    def check_shape(self, dtype: str, shape: tuple[int, ...]) -> None:
        """Refuse what was declared, before any of it is read."""
        came = f"{dtype} of shape {shape}"
        if dtype not in _ITEM_BYTES:
            raise self.refusal(came, f"save it as one of {', '.join(_ITEM_BYTES)}")
        if len(shape) != 2:
            raise self.refusal(came, "save one prompt, without a batch dimension")
        if shape[1] != self.hidden_size:
            raise self.refusal(came, "save embeddings of this model, or choose the model they are of")
        if shape[0] < 1:
            raise self.refusal(came, "save at least one row")
        self.check_bytes(shape[0] * shape[1] * _ITEM_BYTES[dtype], came)

    def check_bytes(self, num_bytes: int, came: str) -> None:
        if num_bytes > self.max_mib * _MIB:
            raise self.refusal(
                f"{came}, {num_bytes / _MIB:.4g} MiB",
                f"shorten it, or raise traffic.embeds_file_max_mib above {self.max_mib:g}",
            )


def read_rows(path: Path, hidden_size: int, max_mib: float, cast_to: FloatType = "float32") -> FileRows:
    """The rows of a file, in the model's type. SuiteError names the file, what was expected and what came."""
    expected = _Expected(path, hidden_size, max_mib)
    reader = _READERS.get(path.suffix)
    if reader is None:
        raise expected.refusal(f"a file named {path.name}", f"name a file that ends in {_endings()}")
    try:
        expected.check_bytes(path.stat().st_size, "a file")
        dtype, values = reader(path, expected)
    except NotATensor as error:
        raise expected.refusal(str(error), "save the rows alone, with torch.save or safetensors") from None
    except OSError as error:
        raise SuiteError(f"{path}: cannot be read: {error.strerror or error}") from None
    data = _cast(values, cast_to, expected).tobytes()
    return FileRows(path, data, len(values), hidden_size, dtype, cast_to)


def _endings() -> str:
    return " or ".join(_READERS)


def _cast(values: NDArray[np.floating], cast_to: FloatType, expected: _Expected) -> NDArray[Any]:
    """Cast once; a value that is not finite, or no longer is, is refused."""
    with np.errstate(over="ignore", invalid="ignore"):
        cast = rounded(values.astype(np.float32), cast_to)
    bad = np.argwhere(~(np.isfinite(values) & is_finite(cast, cast_to)))
    if len(bad):
        row, column = bad[0].tolist()
        raise expected.refusal(
            f"{values[row, column]} at row {row}, column {column}", f"every value must be finite in {cast_to}"
        )
    return cast


def _read_torch(path: Path, expected: _Expected) -> tuple[str, NDArray[np.floating]]:
    file = TorchFile(path.read_bytes())
    view = file.view
    dtype = view.storage.dtype
    expected.check_shape(dtype, view.shape)
    item_bytes = _ITEM_BYTES[dtype]
    expected.check_bytes(view.storage.count * item_bytes, f"a storage of {view.storage.count} {dtype}")
    return dtype, _strided(_decoded(file.read(item_bytes), dtype, file.byte_order), view)


def _strided(storage: NDArray[np.floating], view: TensorView) -> NDArray[np.floating]:
    strides = tuple(stride * storage.itemsize for stride in view.strides)
    return np.lib.stride_tricks.as_strided(storage[view.offset :], view.shape, strides, writeable=False)


def _read_safetensors(path: Path, expected: _Expected) -> tuple[str, NDArray[np.floating]]:
    try:
        with safe_open(path, framework="np") as file:
            name = _only_tensor(list(file.keys()))
            part = file.get_slice(name)
            shape, written = tuple(part.get_shape()), str(part.get_dtype())
        dtype = _SAFETENSORS_DTYPES.get(written, written)
        expected.check_shape(dtype, shape)
        values = dict(_DESERIALIZE(path.read_bytes()))[name]["data"]
    except SafetensorError as error:
        raise NotATensor(f"no safetensors file, or one cut short ({error})") from None
    return dtype, _decoded(bytes(values), dtype, "<").reshape(shape)


def _only_tensor(names: list[str]) -> str:
    if _TENSOR_NAME in names:
        return _TENSOR_NAME
    if len(names) != 1:
        shown = ", ".join(sorted(names)[:4])
        raise NotATensor(f"{len(names)} tensors, none of them named {_TENSOR_NAME} ({shown})")
    return names[0]


def _decoded(values: bytes, dtype: str, byte_order: str) -> NDArray[np.floating]:
    """[values] as numpy has them; bfloat16, which numpy lacks, is the upper half of a float32."""
    if dtype == "bfloat16":
        upper = np.frombuffer(values, f"{byte_order}u2").astype(np.uint32)
        return (upper << 16).view(np.float32)
    return np.frombuffer(values, f"{byte_order}f{_ITEM_BYTES[dtype]}")


_Reader = Callable[[Path, _Expected], tuple[str, "NDArray[np.floating]"]]
_READERS: Mapping[str, _Reader] = {".safetensors": _read_safetensors, ".pt": _read_torch}
