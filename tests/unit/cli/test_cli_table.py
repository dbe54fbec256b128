"""The table of commands: each is there, and is loaded when it is called, not before."""

import subprocess
import sys

from timerwheel.cli.table import TABLE, Group, Loaded

LOADS_SERVE = """
import sys
from typer.main import get_command
from timerwheel.cli.main import app
get_command(app).commands["serve"]
print(*sorted(sys.modules))
"""


def test_every_command_of_the_table_can_be_made_under_its_name():
    for name, made in Loaded(TABLE).items():
        assert made.name == name
        entry = TABLE[name]
        if isinstance(entry, Group):
            assert {below: command.name for below, command in made.commands.items()} == {
                below: below for below in entry.commands
            }


def test_a_service_starts_without_what_only_other_commands_need():
    run = subprocess.run([sys.executable, "-c", LOADS_SERVE], check=True, capture_output=True, text=True)
    loaded = set(run.stdout.split())
    assert "timerwheel.cli.serve" in loaded
    assert loaded.isdisjoint(
        {"timerwheel.client.client", "timerwheel.cli.connection", "timerwheel.cli.top", "aiohttp"}
    )
