"""Only `timerwheel.store.files` decides with which mode a file or directory is made."""

import ast
from pathlib import Path

import pytest

from tests.harness.permissions import umask
from timerwheel.store.files import DIRECTORY_MODE, FILE_MODE, DiskFiles, make_directory, narrow

ROOT = Path(__file__).parents[3]
PACKAGES = ("store", "timerwheel", "api", "spark_jobs")
MAKING = {
    "mkdir",
    "makedirs",
    "write_text",
    "write_bytes",
    "touch",
    "mkfifo",
    "copyfile",
    "copytree",
    "mknod",
}
# What makes files in another way, and why that is well.
ALLOWED = {
    ("spark_jobs/storage.py", "makedirs"): "a remote file system",
    ("spark_jobs/storage.py", "open descriptor"): "of a file that `create_file` made",
    ("spark_jobs/archive/chunk_writer.py", "mkdir"): "with DIRECTORY_MODE, without parents",
    ("spark_jobs/archive/store.py", "makedirs"): "a remote file system",
    ("store/files.py", "mkdir"): "with DIRECTORY_MODE",
    ("timerwheel/cli/own_groups.py", "mkdir"): "of the user alone, beside what is not of the service",
    ("timerwheel/cli/main.py", "open 'w'"): "the null device, which is there",
    ("timerwheel/engine.py", "touch"): "with FILE_MODE",
}


def makers(path: Path) -> set[str]:
    """The names of the calls in a module that make a file or a directory in a way of their own."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        texts = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and one.value]
        if name in MAKING:
            found.add(name)
        if name == "open" and any(text in ("w", "wb", "x", "xb", "a", "ab", "w+b", "x+b") for text in texts):
            found.add(f"open {ast.unparse(node.args[0])}")
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_makes_files_with_a_mode_of_its_own(package):
    found = {
        (str(path.relative_to(ROOT)), name)
        for path in (ROOT / package).rglob("*.py")
        for name in makers(path)
        if not name.startswith(("open create_file(", "open beside", "open temporary"))
    }
    assert {one for one in found if one not in ALLOWED} == set()


def test_a_directory_and_all_that_it_lies_in_are_made_with_the_mode_of_directories(tmp_path):
    with umask(0):
        make_directory(tmp_path / "a" / "b" / "c")
        make_directory(tmp_path / "a" / "b" / "c")
        DiskFiles().write_whole(tmp_path / "a" / "file", b"x")
        DiskFiles().open(tmp_path / "a" / "log", create=True).close()
    for name in ("a", "a/b", "a/b/c"):
        assert (tmp_path / name).stat().st_mode & 0o777 == DIRECTORY_MODE
    for name in ("a/file", "a/log"):
        assert (tmp_path / name).stat().st_mode & 0o777 == FILE_MODE


def test_a_file_where_a_directory_should_be_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_directory(tmp_path / "file")
    with pytest.raises(NotADirectoryError):
        make_directory(tmp_path / "file" / "below")


@pytest.mark.parametrize(
    ("before", "group", "after"),
    [
        (0o666, True, 0o640),
        (0o644, False, 0o600),
        (0o600, True, 0o600),
        (0o777, True, 0o640),
        (0o4755, True, 0o4640),
        (0o400, True, 0o400),
    ],
)
def test_a_mode_is_narrowed_and_never_widened(tmp_path, before, group, after):
    path = tmp_path / "file"
    path.touch()
    path.chmod(before)
    found = narrow([path], group=group)
    assert path.stat().st_mode & 0o7777 == after
    assert found.changed == (before != after)
    assert narrow([path], group=group).changed == 0
