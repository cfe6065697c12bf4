"""An SQLite export, of any version and with anything missing, becomes one kind of capture."""

from __future__ import annotations

import sqlite3

import pytest
from nsys_fixture import COPY_COLUMNS, KERNEL_COLUMNS, MARK, NVTX_COLUMNS, START_END, Fixture, global_tid

from suite.errors import SuiteError
from suite.profile.capture import NO_OWN_RANGES, device_totals, totals
from suite.profile.nsys_sqlite import read_sqlite


@pytest.fixture
def path(tmp_path):
    return tmp_path / "capture.sqlite"


def own(**changes):
    """A fixture with our domain in process 100."""
    fixture = Fixture(**changes)
    fixture.domain(100, 1, "stepcost")
    return fixture


# Ranges


@pytest.mark.parametrize("version", NVTX_COLUMNS)
@pytest.mark.parametrize("is_registered", [False, True])
def test_a_range_has_its_name_domain_thread_and_times_in_every_version(version, is_registered, path):
    if is_registered and version == "2020.1":
        pytest.skip("no registered strings in that version")
    fixture = own(version=version)
    fixture.range("forward", 1000, 3500, tid=107, is_registered=is_registered)
    (found,) = read_sqlite(fixture.write(path)).own
    assert (found.name, found.domain, found.pid, found.tid) == ("forward", "stepcost", 100, 107)
    assert (found.start_ns, found.end_ns, found.duration_ns) == (1000, 3500, 2500)


@pytest.mark.parametrize("column", ["int64Value", "uint64Value", "int32Value", "uint32Value"])
def test_the_step_is_the_payload_of_whatever_whole_type(column, path):
    fixture = own()
    fixture.range("forward", 1, 2, **{column: 41})
    (found,) = read_sqlite(fixture.write(path)).own
    assert found.step_id == 41


def test_a_payload_that_is_no_whole_number_is_no_step(path):
    fixture = own()
    fixture.range("forward", 1, 2, doubleValue=1.5)
    fixture.range("forward", 3, 4)
    capture = read_sqlite(fixture.write(path))
    assert [item.step_id for item in capture.own] == [None, None]
    assert capture.step_ids == frozenset()


def test_the_first_step_is_0_and_time_of_no_step_is_no_step(path):
    fixture = own()
    fixture.range("forward", 1, 2, int64Value=0)
    fixture.range("wait.arrivals", 3, 4, int64Value=-1)
    assert read_sqlite(fixture.write(path)).step_ids == {0}


def test_a_range_without_an_end_is_open_and_has_no_duration(path):
    fixture = own()
    fixture.range("forward", 1000, None)
    fixture.range("forward", 10, 20)
    capture = read_sqlite(fixture.write(path))
    assert capture.num_open == 1
    assert [item.duration_ns for item in capture.own] == [10, None]
    assert totals(capture.own)["forward"].total_ns == 10
    assert totals(capture.own)["forward"].num_open == 1


def test_interleaved_step_ranges_are_siblings_and_take_no_part_in_nesting(path):
    fixture = own()
    fixture.range("step decode slice/merge", 0, 100, event_type=START_END, int64Value=1)
    fixture.range("step decode slice/merge", 50, 150, event_type=START_END, int64Value=2)
    fixture.range("compile", 60, 70)
    fixture.call(65, 66, 5)
    fixture.kernel("k", 80, 90, 5)
    fixture.call(75, 76, 6)  # within both steps, and within no nested range
    fixture.kernel("outside", 95, 99, 6)
    capture = read_sqlite(fixture.write(path))
    assert [(item.start_ns, item.end_ns, item.is_nested) for item in capture.steps] == [
        (0, 100, False),
        (50, 150, False),
    ]
    assert capture.num_open == 0
    assert [item.range and item.range.name for item in capture.work] == ["compile", None]


def test_marks_are_no_ranges(path):
    fixture = own()
    fixture.range("here", 1, None, event_type=MARK)
    assert read_sqlite(fixture.write(path)).ranges == ()


def test_each_process_numbers_its_domains_anew(path):
    fixture = Fixture()
    fixture.domain(100, 1, "stepcost")
    fixture.domain(200, 1, "another")
    fixture.domain(200, 2, "stepcost", is_registered=True)
    fixture.range("launch", 1, 2, pid=100, domain_id=1)
    fixture.range("theirs", 3, 4, pid=200, domain_id=1)
    fixture.range("forward", 5, 6, pid=200, domain_id=2)
    fixture.processes({1: "init", 100: "worker", 200: "device"})
    capture = read_sqlite(fixture.write(path))
    assert [item.name for item in capture.own] == ["launch", "forward"]
    assert [(item.pid, item.name) for item in capture.processes] == [(100, "worker"), (200, "device")]


def test_the_default_domain_has_no_name_and_one_that_nobody_created_has_a_number(path):
    fixture = Fixture()
    fixture.range("a", 1, 2, domain_id=0)
    fixture.range("b", 3, 4, domain_id=None)
    fixture.range("c", 5, 6, domain_id=9)
    assert [item.domain for item in read_sqlite(fixture.write(path)).ranges] == [None, None, "domain 9"]


def test_a_name_that_is_nowhere_is_told_as_such(path):
    fixture = own()
    fixture.range("lost", 1, 2)
    capture = read_sqlite(fixture.write(path, has_strings=False))
    assert [item.name for item in capture.own] == ["(without a name)"]


def test_names_in_any_script_and_bytes_that_are_no_text_come_through(path):
    fixture = own()
    fixture.range("前处理 </script>", 1, 2)
    fixture.range("bad", 3, 4)
    fixture.write(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE StringIds SET value = CAST(x'62FF64' AS TEXT) WHERE value = 'bad'")
    assert [item.name for item in read_sqlite(path).own] == ["前处理 </script>", "b\ufffdd"]


def test_processes_without_a_table_have_no_name(path):
    fixture = own()
    fixture.range("forward", 1, 2)
    assert [(item.pid, item.name) for item in read_sqlite(fixture.write(path)).processes] == [(100, None)]


@pytest.mark.parametrize("table", ["EXPORT_META_DATA", "META_DATA_EXPORT"])
def test_the_version_of_the_tool_is_known_from_either_table(table, path):
    fixture = own()
    fixture.product_version("2024.1.1", table)
    assert read_sqlite(fixture.write(path)).tool_version == "2024.1.1"


# GPU work


def test_work_belongs_to_the_innermost_range_of_the_launching_thread(path):
    fixture = own()
    fixture.range("launch", 0, 1000)
    fixture.range("forward", 100, 400)
    fixture.range("merge", 400, 500)
    fixture.range("elsewhere", 0, 1000, tid=101)
    for correlation, at in enumerate((50, 150, 399, 400, 450, 600, 1000), 1):
        fixture.call(at, at + 5, correlation)
        fixture.kernel(f"k{at}", at + 5000, at + 5010, correlation)
    capture = read_sqlite(fixture.write(path))
    ranges = {item.name: item.range.name if item.range else None for item in capture.work}
    assert ranges == {
        "k50": "launch",
        "k150": "forward",
        "k399": "forward",
        "k400": "merge",
        "k450": "merge",
        "k600": "launch",
        "k1000": None,
    }
    assert device_totals(capture.work) == {
        "launch": (2, 20),
        "forward": (2, 20),
        "merge": (2, 20),
        "": (1, 10),
    }


def test_work_is_matched_within_its_process(path):
    fixture = Fixture()
    for pid, name in ((100, "mine"), (200, "yours")):
        fixture.range(name, 0, 100, pid=pid, domain_id=0)
        fixture.call(10, 20, 5, pid=pid)
        fixture.kernel(f"of {pid}", 30, 40, 5, pid=pid)
    capture = read_sqlite(fixture.write(path))
    assert {item.name: item.range.name for item in capture.work} == {"of 100": "mine", "of 200": "yours"}


def test_work_without_a_process_is_matched_by_its_correlation_id_alone(path):
    fixture = own()
    fixture.range("forward", 0, 100)
    fixture.call(10, 20, 5)
    fixture.kernel("k", 30, 40, 5, columns=KERNEL_COLUMNS.replace(" globalPid", ""))
    capture = read_sqlite(fixture.write(path))
    assert capture.work[0].range.name == "forward"


def test_work_within_an_open_range_belongs_to_it(path):
    fixture = own()
    fixture.range("forward", 0, None)
    fixture.call(10, 20, 5)
    fixture.kernel("k", 30, 40, 5)
    assert read_sqlite(fixture.write(path)).work[0].range.name == "forward"


def test_a_copy_has_its_direction_and_bytes(path):
    fixture = own()
    fixture.range("upload.flags", 0, 100)
    fixture.call(10, 20, 5)
    fixture.copy(30, 40, 5, 256, 1)
    fixture.copy(50, 60, 6, 12, 2)
    capture = read_sqlite(fixture.write(path))
    assert [(item.kind, item.name, item.num_bytes) for item in capture.work] == [
        ("copy", "host to device", 256),
        ("copy", "device to host", 12),
    ]
    assert capture.work[0].range.name == "upload.flags" and capture.work[1].range is None


def test_the_files_own_names_of_directions_come_first(path):
    fixture = own()
    fixture.add(
        "ENUM_CUDA_MEMCPY_OPER", "id name label", {"id": 1, "name": "HTOD", "label": "Host-to-Device"}
    )
    fixture.copy(30, 40, 5, 256, 1)
    assert read_sqlite(fixture.write(path)).work[0].name == "Host-to-Device"


def test_work_without_runtime_rows_is_kept_and_its_range_is_told_to_be_missing(path):
    fixture = own()
    fixture.range("forward", 0, 100)
    fixture.kernel("k", 30, 40, 5)
    capture = read_sqlite(fixture.write(path))
    assert capture.work[0].range is None
    assert any("no GPU work lies within a range" in text for text in capture.absent)


def test_columns_of_a_later_version_are_let_be(path):
    fixture = own(version="2024.1")
    fixture.range("forward", 0, 100, binaryData=b"\x00", schemaId=3)
    fixture.kernel("k", 30, 40, 5, columns=f"{KERNEL_COLUMNS} graphNodeId graphId gridX")
    assert len(read_sqlite(fixture.write(path)).work) == 1
    assert "graphId" not in COPY_COLUMNS


# What is absent


def test_no_ranges_of_ours_is_said(path):
    fixture = Fixture()
    fixture.range("gpu_model_runner: forward", 1, 2, domain_id=0)
    capture = read_sqlite(fixture.write(path))
    assert NO_OWN_RANGES in capture.absent
    assert [item.name for item in capture.vllm] == ["gpu_model_runner: forward"]


def test_a_capture_of_nothing_is_a_capture(path):
    fixture = Fixture()
    fixture.product_version("2022.4.2.1")
    capture = read_sqlite(fixture.write(path))
    assert (capture.ranges, capture.work, capture.processes) == ((), (), ())
    assert [text.split(":")[0] for text in capture.absent] == [
        "no ranges at all",
        NO_OWN_RANGES,
        "no GPU work",
    ]


def test_a_cpu_only_capture_says_so(path):
    fixture = own()
    fixture.range("forward", 1, 2)
    (text,) = read_sqlite(fixture.write(path)).absent
    assert text.startswith("no GPU work")


# Files that are none


def test_a_file_that_is_no_database_is_refused(path):
    path.write_text("not a database, but long enough to be taken for one" * 100)
    with pytest.raises(SuiteError, match="file is not a database"):
        read_sqlite(path)


def test_a_database_of_something_else_is_refused(path):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
    with pytest.raises(SuiteError, match="without any table of Nsight Systems"):
        read_sqlite(path)


def test_a_file_that_is_not_there_is_refused_and_not_made(path):
    with pytest.raises(SuiteError, match="no such file"):
        read_sqlite(path)
    assert not path.exists()


def test_a_damaged_time_is_told(path):
    fixture = own()
    fixture.nvtx(start="soon", end=2, eventType=59, globalTid=global_tid(1, 1), text="x")
    with pytest.raises(SuiteError, match="start 'soon', which is no whole number"):
        read_sqlite(fixture.write(path))


def test_the_file_is_not_written_to(path):
    fixture = own()
    fixture.range("forward", 1, 2)
    fixture.write(path)
    path.chmod(0o400)
    before = path.read_bytes()
    read_sqlite(path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]
