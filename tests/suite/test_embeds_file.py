"""Files of embeddings: what is read, exactly, and what is refused before it can do harm."""

import os
import pickle
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from bad_inputs import safetensors_bytes
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from suite.embeds_file import FileRows, read_rows
from suite.errors import SuiteError

ROOT = Path(__file__).resolve().parents[2]
HIDDEN = 8


def _read(path: Path, max_mib: float = 1.0) -> FileRows:
    return read_rows(path, HIDDEN, max_mib)


def _array(rows: FileRows) -> np.ndarray:
    return np.frombuffer(rows.data, np.float32).reshape(rows.num_rows, rows.hidden_size)


def _saved(folder: Path, content: object, **options: object) -> Path:
    path = folder / "rows.pt"
    torch.save(content, path, **options)
    return path


def _refusal(path: Path, max_mib: float = 1.0) -> str:
    with pytest.raises(SuiteError) as caught:
        _read(path, max_mib)
    text = str(caught.value)
    assert text.startswith(f"{path}: ") and len(text.splitlines()) == 1
    return text


def _rewritten(path: Path, change: Callable[[str, bytes], bytes]) -> Path:
    """The archive with every member passed through `change`."""
    with zipfile.ZipFile(path) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members:
            archive.writestr(name, change(name, content))
    return path


@pytest.mark.parametrize("ending", ["pt", "safetensors"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_rows_of_every_float_width_are_read_and_a_cast_is_noted(
    dtype: torch.dtype, ending: str, tmp_path: Path
) -> None:
    tensor = torch.randn(5, HIDDEN, dtype=torch.float64).to(dtype)
    path = tmp_path / f"rows.{ending}"
    torch.save(tensor, path) if ending == "pt" else save_file({"anything": tensor}, path)
    rows = _read(path)
    assert (_array(rows) == tensor.float().numpy()).all()
    name = str(dtype).removeprefix("torch.")
    assert rows.note == (None if name == "float32" else f"rows.{ending}: {name} rows cast to float32")


@given(
    first=st.integers(0, 3),
    step=st.integers(1, 3),
    count=st.integers(1, 4),
    is_turned=st.booleans(),
    needs_grad=st.booleans(),
)
def test_a_view_of_a_larger_tensor_is_read_as_torch_reads_it(
    first: int,
    step: int,
    count: int,
    is_turned: bool,
    needs_grad: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    shape = (HIDDEN, 20) if is_turned else (20, HIDDEN)
    whole = torch.arange(20.0 * HIDDEN).reshape(shape).requires_grad_(needs_grad)
    view = (whole.T if is_turned else whole)[first : first + step * count : step]
    path = _saved(tmp_path_factory.mktemp("view"), view)
    assert (_array(_read(path)) == torch.load(path, weights_only=True).detach().numpy()).all()


def test_a_parameter_is_a_tensor_too(tmp_path: Path) -> None:
    parameter = torch.nn.Parameter(torch.randn(3, HIDDEN))
    assert (_array(_read(_saved(tmp_path, parameter))) == parameter.detach().numpy()).all()


@pytest.mark.parametrize("device", [b"mps:0", b"cuda:7"])
def test_a_file_saved_from_another_device_is_read_like_any(device: bytes, tmp_path: Path) -> None:
    tensor = torch.randn(3, HIDDEN)

    def moved(name: str, content: bytes) -> bytes:
        where, here = bytes([len(device), 0, 0, 0]) + device, b"\3\0\0\0cpu"
        assert name != "rows/data.pkl" or content.count(here) == 1
        return content.replace(here, where) if name == "rows/data.pkl" else content

    path = _rewritten(_saved(tmp_path, tensor), moved)
    assert (_array(_read(path)) == tensor.numpy()).all()


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_a_sparse_tensor_of_four_tebibytes_is_refused_with_small_memory(layout: str, tmp_path: Path) -> None:
    size = (2**20, 2**20) if layout == "coo" else (4, 2**20)
    index = torch.tensor([[0], [0]])
    tensor = torch.sparse_coo_tensor(index, torch.tensor([1.0]), size, check_invariants=True)
    path = _saved(tmp_path, tensor if layout == "coo" else tensor.to_sparse_csr())
    assert path.stat().st_size < 3000
    tracemalloc.start()
    text = _refusal(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "expected one dense tensor of floats of shape (rows, 8), got a sparse tensor" in text
    assert peak < 2**20


@pytest.mark.parametrize(
    ("tensor", "came"),
    [
        (torch.zeros(HIDDEN), "float32 of shape (8,)"),
        (torch.zeros(1, 3, HIDDEN), "float32 of shape (1, 3, 8)"),
        (torch.zeros(3, HIDDEN + 1), "float32 of shape (3, 9)"),
        (torch.zeros(0, HIDDEN), "float32 of shape (0, 8)"),
        (torch.zeros(3, HIDDEN, dtype=torch.int64), "int64 of shape (3, 8)"),
        (torch.zeros(3, HIDDEN, dtype=torch.bool), "bool of shape (3, 8)"),
        (torch.zeros(3, HIDDEN, dtype=torch.complex64), "complex64 of shape (3, 8)"),
        (torch.zeros(3, HIDDEN).to(torch.float8_e4m3fn), "more than a dense tensor of a usual type"),
        (torch.zeros(3, HIDDEN, dtype=torch.complex64).conj().imag, "a lazily changed tensor"),
        (torch.full((3, HIDDEN), torch.nan), "nan at row 0, column 0"),
        (torch.tensor([[0.0] * 7 + [-torch.inf]]), "-inf at row 0, column 7"),
        (torch.full((3, HIDDEN), 1e300, dtype=torch.float64), "1e+300 at row 0"),
        ({"prompt_embeds": torch.zeros(3, HIDDEN)}, "a dict, not a tensor"),
        ([torch.zeros(3, HIDDEN)], "a list, not a tensor"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_tensor_that_is_no_prompt_is_refused_with_what_came(
    tensor: object, came: str, tmp_path: Path
) -> None:
    assert f"expected one dense tensor of floats of shape (rows, 8), got {came}" in _refusal(
        _saved(tmp_path, tensor)
    )


def test_a_small_file_that_declares_much_is_refused_by_what_it_declares(tmp_path: Path) -> None:
    path = _saved(tmp_path, torch.zeros(1).expand(2**20, HIDDEN))
    assert path.stat().st_size < 3000
    tracemalloc.start()
    text = _refusal(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "(1048576, 8), 32 MiB" in text and "raise traffic.embeds_file_max_mib above 1" in text
    assert peak < 2**20


def test_a_slice_of_a_storage_beyond_the_cap_is_refused(tmp_path: Path) -> None:
    path = _saved(tmp_path, torch.zeros(2**15, HIDDEN)[:2])
    assert "a file, 1.001 MiB" in _refusal(path)
    packed = tmp_path / "packed.pt"
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as small:
        for info in archive.infolist():
            small.writestr(info.filename, archive.read(info))
    assert packed.stat().st_size < 10_000
    assert "a storage of 262144 float32, 1 MiB" in _refusal(packed, max_mib=0.5)


@pytest.mark.parametrize("ending", ["pt", "safetensors"])
def test_a_file_cut_anywhere_is_refused(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows.{ending}"
    if ending == "pt":
        torch.save(torch.ones(3, HIDDEN), path)
    else:
        path.write_bytes(safetensors_bytes((3, HIDDEN), 1.0))
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        assert "cut short" in _refusal(path) or "damaged" in _refusal(path)


@given(data=st.data())
def test_a_changed_byte_never_ends_in_another_error(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("changed") / data.draw(st.sampled_from(["rows.pt", "rows.safetensors"]))
    if path.suffix == ".pt":
        torch.save(torch.ones(3, HIDDEN), path)
    else:
        path.write_bytes(safetensors_bytes((3, HIDDEN), 1.0))
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        assert np.isfinite(_array(_read(path))).all()
    except SuiteError as error:
        assert str(error).startswith(str(path))


class _Code:
    """Pickles into a call."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self._path),)


def test_code_in_a_pickle_is_refused_and_never_run(tmp_path: Path) -> None:
    trap = tmp_path / "ran"
    path = _saved(tmp_path, _Code(trap))
    assert "more than a dense tensor of a usual type (posix.mkdir)" in _refusal(path)
    path.write_bytes(pickle.dumps(_Code(trap)))
    assert "no archive of torch.save" in _refusal(path)
    assert not trap.exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"\x80\x02]r\xff\xff\xff\x7f.", "a memo out of range"),
        (b"\x80\x02\x8d\xff\xff\xff\xff\xff\xff\xff\x00.", "no tensor of torch.save"),
        (b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x00.", "pickle operation FRAME"),
        (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.", "no tensor of torch.save"),
        (b"\x80\x02c__builtin__\neval\n.", "__builtin__.eval"),
        (b"\x80\x02K\x01Q.", "no tensor of torch.save"),
        (b"", "no tensor of torch.save"),
        (b"\x80\x02" + b"]" * 100_000, "where at most 65536 belong"),
    ],
)
def test_a_made_up_pickle_is_refused_before_it_can_allocate(text: bytes, words: str, tmp_path: Path) -> None:
    path = _saved(tmp_path, torch.ones(3, HIDDEN))
    _rewritten(path, lambda name, content: text if name.endswith("data.pkl") else content)
    tracemalloc.start()
    assert words in _refusal(path)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_a_shape_beyond_its_storage_is_refused(tmp_path: Path) -> None:
    path = _saved(tmp_path, torch.ones(3, HIDDEN))
    declared = b"K\x03K\x08\x86"  # the shape (3, 8)
    _rewritten(path, lambda name, content: content.replace(declared, b"K\x04K\x08\x86"))
    assert "a tensor of shape (4, 8) over a storage of 24 values" in _refusal(path)


def test_other_archives_and_older_formats_are_refused(tmp_path: Path) -> None:
    path = _saved(tmp_path, torch.ones(3, HIDDEN), _use_new_zipfile_serialization=False)
    assert "no archive of torch.save" in _refusal(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "nothing")
    assert "an archive that torch.save did not write" in _refusal(path)
    assert "ends in .safetensors or .pt" in _refusal(tmp_path / "rows.npy")
    assert "No such file" in _refusal(tmp_path / "gone.pt")


def test_of_several_tensors_the_one_named_prompt_embeds_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.safetensors"
    save_file({"prompt_embeds": torch.ones(2, HIDDEN), "other": torch.zeros(2)}, path)
    assert (_array(_read(path)) == 1).all()
    save_file({"one": torch.ones(2, HIDDEN), "other": torch.zeros(2)}, path)
    assert "2 tensors, none of them named prompt_embeds (one, other)" in _refusal(path)


def test_big_endian_values_are_read_in_their_order(tmp_path: Path) -> None:
    tensor = torch.randn(3, HIDDEN)
    path = _saved(tmp_path, tensor)
    swapped = tensor.numpy().astype(">f4").tobytes()
    contents = {"rows/byteorder": b"big", "rows/data/0": swapped}
    _rewritten(path, lambda name, content: contents.get(name, content))
    assert (_array(_read(path)) == tensor.numpy()).all()


def test_reading_a_file_needs_no_torch(tmp_path: Path) -> None:
    path = _saved(tmp_path, torch.ones(3, HIDDEN, dtype=torch.bfloat16))
    program = (
        "import sys; from pathlib import Path; from suite.embeds_file import read_rows\n"
        "print(read_rows(Path(sys.argv[1]), 8, 1.0).num_rows, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["3", "False"]
