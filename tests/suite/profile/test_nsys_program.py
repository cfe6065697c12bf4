"""What nsys is told, what its versions lose, and what is said where it is missing or fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from suite.errors import SuiteError
from suite.profile.files import read_capture
from suite.profile.nsys import Nsys, find_importer, find_nsys, profile_command, tail_of, to_sqlite
from suite.profile.versions import lost_with

NSYS = Nsys(Path("/opt/bin/nsys"), (2022, 4, 2, 1))


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def only_path(tmp_path, monkeypatch):
    """An empty folder that is the whole search path of programs, but for the shell's own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", os.pathsep.join([str(folder), "/usr/bin", "/bin"]))
    monkeypatch.setattr("suite.profile.nsys.PROGRAM", "nsys-of-this-test")
    return folder


# Versions


@pytest.mark.parametrize(
    ("nvtx", "nsys", "is_lost"),
    [
        ("0.2.11", "2022.4.2.1", False),
        ("0.2.12", "2022.4.2.1", True),
        ("0.2.17", "2023.4.4", True),
        ("0.3.0", "2023.4.4", True),
        ("0.2.12", "2024.1", False),
        ("0.2.12", "(of an unknown version)", False),  # not known: no warning that may be wrong
    ],
)
def test_the_versions_that_lose_every_range_are_told(nvtx, nsys, is_lost):
    text = lost_with(nvtx, nsys)
    assert (text is not None) == is_lost
    if text:
        assert nvtx in text and "pip install nvtx==0.2.11" in text


def test_the_version_is_read_from_the_program(only_path):
    program(only_path / "nsys-of-this-test", "echo NVIDIA Nsight Systems version 2023.4.1.97-234133557503v0")
    assert find_nsys().version == (2023, 4, 1, 97)


def test_a_missing_nsys_is_told_with_the_remedy(only_path, tmp_path):
    report = tmp_path / "a.nsys-rep"
    report.write_bytes(b"x")
    with pytest.raises(SuiteError, match="nsys is not on the path: install Nsight Systems"):
        read_capture(report)


# Its command line


def words(command):
    return " ".join(command)


def test_on_a_cpu_nvtx_alone_is_traced():
    command = profile_command(NSYS, Path("out"), ["python", "-m", "suite"], has_gpu=False, is_window=False)
    assert words(command) == (
        "/opt/bin/nsys profile -t nvtx -s none --cpuctxsw=none -f true -o out python -m suite"
    )


def test_a_window_on_a_cpu_is_an_nvtx_range_and_the_program_goes_on():
    text = words(profile_command(NSYS, Path("out"), ["p"], has_gpu=False, is_window=True))
    assert "-c nvtx -p stepcost window@stepcost --capture-range-end=stop --kill=none p" in text


def test_on_a_gpu_cuda_is_traced_to_the_nodes_of_graphs():
    text = words(profile_command(NSYS, Path("out"), ["p"], has_gpu=True, is_window=True))
    assert "-t cuda,nvtx" in text and "--cuda-graph-trace=node" in text
    assert "-c cudaProfilerApi --capture-range-end=stop --kill=none" in text


# Its files


@pytest.mark.parametrize("layout", ["host-linux-x64", "lib/nsight-systems/host-linux-x64"])
def test_the_importer_is_found_beside_nsys_through_links(layout, tmp_path):
    nsys = program(tmp_path / "lib/x86/nsight-systems/target-linux-x64/nsys", "")
    importer = program(tmp_path / layout / "QdstrmImporter", "")
    link = tmp_path / "usr/bin/nsys"
    link.parent.mkdir(parents=True)
    link.symlink_to(nsys)
    assert find_importer(link) == importer


def test_no_importer_is_none(tmp_path):
    assert find_importer(program(tmp_path / "deep/bin/nsys", "")) is None


def test_a_stream_is_completed_with_the_importers_own_libraries(only_path, tmp_path):
    program(
        only_path / "nsys-of-this-test",
        'if [ "$1" = --version ]; then echo version 2022.4; else cp "$8" "$7"; fi',
    )
    importer = tmp_path / "host-linux-x64/QdstrmImporter"
    program(importer, 'printf "Processing [==50%%]\\r"; echo "$LD_LIBRARY_PATH" > "$4"')
    stream = tmp_path / "a.qdstrm"
    stream.write_bytes(b"x")
    exported = to_sqlite(stream, tmp_path)
    assert exported.read_text().split(os.pathsep)[0].strip() == str(importer.parent)


def test_a_stream_without_an_importer_is_told(only_path, tmp_path):
    program(only_path / "nsys-of-this-test", "echo version 2022.4")
    stream = tmp_path / "a.qdstrm"
    stream.write_bytes(b"x")
    with pytest.raises(SuiteError, match="QdstrmImporter must make a report of"):
        to_sqlite(stream, tmp_path)


def test_what_nsys_says_when_it_fails_is_told_without_its_progress_bar(only_path, tmp_path):
    script = 'if [ "$1" = --version ]; then echo version 2022.4; else\n'
    script += (
        'printf "Exporting [==12%%]\\rExporting [=====99%%]\\n"; echo "the report is damaged"; exit 3; fi'
    )
    program(only_path / "nsys-of-this-test", script)
    report = tmp_path / "a.nsys-rep"
    report.write_bytes(b"x")
    with pytest.raises(SuiteError, match=r"exit code 3: the report is damaged$"):
        read_capture(report)


def test_an_export_of_nothing_is_told(only_path, tmp_path):
    program(only_path / "nsys-of-this-test", "echo version 2022.4")
    report = tmp_path / "a.nsys-rep"
    report.write_bytes(b"x")
    with pytest.raises(SuiteError, match="exported nothing"):
        read_capture(report)


def test_a_tail_is_short_and_never_empty():
    assert tail_of("") == "it said nothing"
    assert len(tail_of("x" * 10_000)) == 500


@pytest.mark.parametrize("name", ["a.txt", "folder", "missing.sqlite"])
def test_what_cannot_be_imported_is_told(name, tmp_path):
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(SuiteError, match=r"--import .*\.sqlite"):
        read_capture(tmp_path / name)
