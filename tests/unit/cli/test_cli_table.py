"""The table of commands: each is there, and is loaded when it is called, not before."""

import subprocess
import sys

from timerwheel.cli.table import PANELS, TABLE, Group, Loaded

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


def test_every_command_has_its_panel_in_the_help():
    assert set(TABLE) <= {name for names in PANELS.values() for name in names}


WITHOUT_IDS = {("schedules", "runs"), ("subscriptions", "stats")}


def test_every_command_that_lists_or_shows_can_print_ids_only():
    for name, made in Loaded(TABLE).items():
        for below, command in getattr(made, "commands", {}).items():
            if below in ("list", "show", "queues") and (name, below) not in WITHOUT_IDS:
                [form] = [param for param in command.params if param.name == "form"]
                assert "id" in form.metavar.split("|"), (name, below)


def test_every_command_that_prints_json_has_the_other_forms():
    for name, made in Loaded(TABLE).items():
        for command in getattr(made, "commands", {"": made}).values():
            flags = {flag for param in command.params for flag in param.opts}
            if "--json" in flags and name != "serve":
                assert "-o" in flags, (name, command.name)
                assert ("--utc" in flags) == ("--iso" in flags), (name, command.name)
