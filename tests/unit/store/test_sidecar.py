import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.store import sidecar
from timerwheel.store.files import DiskFiles
from timerwheel.store.table import ROW_DTYPE, Table

BASE, END = 4096, 8192
FILES = DiskFiles()


def table(topics: list[str], count: int = 3) -> Table:
    rows = np.zeros(count, ROW_DTYPE)
    for place, name in enumerate(ROW_DTYPE.names):
        rows[name] = np.arange(count) * 11 + place
    rows["topic"] = np.arange(count) % max(len(topics), 1)
    return Table(rows, topics)


def same(found: Table | None, wanted: Table) -> bool:
    return (
        found is not None and found.topics == wanted.topics and found.rows.tobytes() == wanted.rows.tobytes()
    )


@pytest.mark.parametrize("count", [0, 1, 5000])
def test_sidecar_gives_back_the_table(tmp_path, count):
    wanted = table(["orders", "%RETRY%g", "a|b"], count)
    sidecar.write(FILES, tmp_path / "x.side", wanted, BASE, END)
    assert same(sidecar.read(FILES, tmp_path / "x.side", BASE, END), wanted)


@given(st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"])), max_size=5))
def test_every_topic_name_without_a_newline_comes_back(tmp_path_factory, topics):
    path = tmp_path_factory.getbasetemp() / "names.side"
    wanted = table(topics)
    sidecar.write(FILES, path, wanted, BASE, END)
    assert same(sidecar.read(FILES, path, BASE, END), wanted)


def test_rows_read_from_a_sidecar_can_be_changed(tmp_path):
    sidecar.write(FILES, tmp_path / "x.side", table(["a"]), BASE, END)
    found = sidecar.read(FILES, tmp_path / "x.side", BASE, END)
    found.rows["topic"] = 7
    assert found.rows["topic"].tolist() == [7, 7, 7]


def test_missing_sidecar_is_none(tmp_path):
    assert sidecar.read(FILES, tmp_path / "x.side", BASE, END) is None


@pytest.mark.parametrize(("base", "end"), [(BASE + 8, END), (BASE, END + 8), (0, 0)])
def test_sidecar_of_another_segment_is_none(tmp_path, base, end):
    sidecar.write(FILES, tmp_path / "x.side", table(["a"]), BASE, END)
    assert sidecar.read(FILES, tmp_path / "x.side", base, end) is None


def test_every_flipped_byte_of_a_sidecar_is_none(tmp_path):
    path = tmp_path / "x.side"
    sidecar.write(FILES, path, table(["orders", "b"]), BASE, END)
    data = path.read_bytes()
    for at in range(len(data)):
        for change in (0x01, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[at] ^= change
            path.write_bytes(damaged)
            assert sidecar.read(FILES, path, BASE, END) is None, at


def test_every_shortened_or_lengthened_sidecar_is_none(tmp_path):
    path = tmp_path / "x.side"
    sidecar.write(FILES, path, table(["orders", "b"]), BASE, END)
    data = path.read_bytes()
    for other in [*(data[:size] for size in range(len(data))), data + b"\0", data + data]:
        path.write_bytes(other)
        assert sidecar.read(FILES, path, BASE, END) is None


def test_sidecar_replaces_the_older_one_and_leaves_nothing_beside(tmp_path):
    path = tmp_path / "x.side"
    sidecar.write(FILES, path, table(["a"], 5), BASE, END)
    sidecar.write(FILES, path, table(["b"], 2), BASE, END)
    assert same(sidecar.read(FILES, path, BASE, END), table(["b"], 2))
    assert FILES.names(tmp_path) == ["x.side"]
