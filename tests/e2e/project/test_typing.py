"""The package as type checkers see it: a user's program passes mypy and pyright, both strict."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = ROOT / "tests" / "typed" / "user_project.py"
FETCH_S = 120  # the first run of pyright fetches it from npm


def test_a_users_program_passes_mypy_strict():
    command = [sys.executable, "-m", "mypy", "--strict", PROGRAM]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_users_program_passes_pyright_strict(tmp_path):
    if importlib.util.find_spec("pyright") is None or shutil.which("node") is None:
        pytest.skip("pyright or node is not installed")
    shutil.copy(PROGRAM, tmp_path)
    # The extra path: pyright does not follow the import hooks of an editable installation.
    config = {"include": ["."], "extraPaths": [str(ROOT)], "typeCheckingMode": "strict"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable]
    try:
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=FETCH_S
        )
    except subprocess.TimeoutExpired:
        pytest.skip("pyright cannot be fetched from npm")
    if "npm" in done.stderr and done.returncode != 0:
        pytest.skip(f"pyright cannot be fetched from npm: {done.stderr[-200:]}")
    assert "0 errors" in done.stdout, done.stdout + done.stderr
