"""Mistakes that people make on the command line, each answered by one line that says what to do."""

import re

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from timerwheel.cli.main import app

MISTAKES = [
    ("sned t x", "there is no command 'sned'; did you mean send?"),
    ("frobnicate", "there is no command 'frobnicate'; timerwheel -h lists them"),
    ("redrive g", "there is no command 'redrive'; did you mean dlq redrive?"),
    ("groups lst", "there is no command 'lst'; did you mean list?"),
    ("--verison", "there is no flag --verison; did you mean --version?"),
    ("send", "TOPIC is missing; usage: timerwheel send [OPTIONS] TOPIC [BODY]"),
    ("send t x y z", "unexpected argument y z; usage: timerwheel send"),
    ("send t x --dealy 5s", "there is no flag --dealy; did you mean --delay?"),
    ("send t x --delay", "--delay needs a value: --delay LENGTH"),
    ("send t x --delay 5", "--delay '5' has no unit; write for example 5ms or 5s"),
    ("send t x --delay soon", "--delay 'soon' is not a length of time; write 90s"),
    ("send t x --delay 5s --at now", "give only one of --delay, --at and --level"),
    ("send t x --at 05/06/2027", "--at '05/06/2027' could mean either of two days; write the date like"),
    ("send t x --at tuesdayish", "--at 'tuesdayish' is not a time; write 2026-12-24 18:00"),
    ("send t x --level one", "--level 'one' is not a whole number; see timerwheel send -h"),
    ("send t x --property colour", "--property 'colour' is not NAME=VALUE"),
    ("send t x -o yaml", "'yaml': give table, wide, json or id"),
    ("send t x --json -o wide", "-o wide and --json contradict each other: give one of them"),
    ("send t x --json=yes", "--json takes no value; write it alone"),
    ("get", "give either an ID or --key TOPIC KEY"),
    ("get a --key t k", "give either an ID or --key TOPIC KEY"),
    ("get --key t", "--key needs 2 values: --key TOPIC KEY"),
    ("reschedule id", "give one of --delay, --at, --level and --shift"),
    ("recall", "give either ids, or --key TOPIC KEY, or conditions"),
    ("recall id --yes", "--dry-run, --yes and --all need conditions"),
    ("recall --all", "give either ids, or --key TOPIC KEY, or conditions"),
    ("recall id --all", "--dry-run, --yes and --all need conditions"),
    ("reschedule id --delay 1h --all", "--dry-run, --yes, --all and --shift need conditions"),
    ("recall --topic t --from yesterdayish", "--from 'yesterdayish' is not a time"),
    ("receive", "TOPIC is missing; usage: timerwheel receive"),
    ("receive t --from middle", "'middle': give beginning, end or an offset from 0"),
    ("receive t --max 0", "--max 0: give 1 or more"),
    ("receive t --queue -1", "--queue -1: give 0 or more"),
    ("groups show t", "GROUP is missing; usage: timerwheel groups show [OPTIONS] TOPIC GROUP"),
    ("groups put t g --max-attempts 0", "--max-attempts 0: give 1 to "),
    ("groups put t g --backoff fast", "--backoff 'fast'"),
    ("groups put t g --start middle", "--start 'middle': give head or tail"),
    ("groups rewind t g", "give one of --to, --at and --offset"),
    ("groups rewind t g --offset 1", "--offset '1' is not QUEUE=N"),
    ("groups receive t g --wait 5m", "--wait: give at most 60s"),
    ("groups extend t g r", "--for is missing; usage: timerwheel groups extend"),
    ("dlq redrive g", "give either offsets or --all"),
    ("dlq drop g --all", "--all needs --topic"),
    ("dlq drop g seven", "OFFSET 'seven' is not a whole number"),
    ("dlq list g --limit 0", "--limit 0: give 1 or more"),
    ("schedules runs n --count 5000", "--count 5000: give 1 to 1000"),
    ("schedules put n t", "give one of --cron and --every"),
    ("schedules put n t --every 1h --missed never", "--missed 'never': give skip, once or all"),
    ("schedules put n t --every 1h --start 2030-01-02 --end 2030-01-01", "--end: is not after --start"),
    ("schedules runs n --count many", "--count 'many' is not a whole number"),
    ("subscriptions update s", "give at least one option to change"),
    ("subscriptions add t http://x --timeout 1ms", "--timeout '1ms': give a duration from"),
    ("topics set t", "give --queues, --ordered, --unordered, --to-kafka or --not-to-kafka"),
    ("tokens create n --scope root", "--scope 'root'"),
    ("tokens create n --scope admin --rate fast", "--rate 'fast' is not a rate; write 100/s"),
    ("slots --level week", "--level 'week': give second, minute, hour or day"),
    ("slots -o id", "-o id lists the messages of one slot: add --at TIME"),
    ("log --tail 1 --limit 1", "--tail cannot be combined with --from or --limit"),
    ("serve --retention forever", "--retention 'forever'"),
    ("serve --prot 80", "there is no flag --prot; did you mean --port?"),
    ("topics list --url ftp://x", "--url"),
    ("listen t", "--forward-to is missing; usage: timerwheel listen"),
    ("--show-completion tcsh", "'tcsh': give bash, zsh or fish"),
]


def timerwheel(*arguments):
    return CliRunner().invoke(app, arguments, prog_name="timerwheel", env={"COLUMNS": "80"})


@pytest.mark.parametrize(("line", "answer"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_is_answered_by_one_line_that_says_what_to_do(line, answer):
    refused = timerwheel(*line.split())
    assert (refused.exit_code, refused.stdout) == (2, ""), refused.output
    assert len(refused.stderr.splitlines()) == 1, refused.stderr
    assert refused.stderr.startswith("timerwheel")
    assert answer in refused.stderr


def test_help_has_a_short_flag_everywhere_and_panels_of_commands():
    shown = timerwheel("-h")
    assert shown.exit_code == 0
    for panel in ("Messages", "Consumers", "Operations", "Data directory", "Spark"):
        assert re.search(rf"─ {panel} ─", shown.stdout), panel
    assert timerwheel("groups", "-h").exit_code == 0
    assert "--max-attempts" in timerwheel("groups", "put", "-h").stdout


def test_flags_are_lower_case():
    """The library calls a flag like its placeholder if they differ only in case."""

    def flags_of(command):
        for parameter in command.params:
            yield from (flag for flag in parameter.opts + parameter.secondary_opts if flag[0] == "-")
        for name in getattr(command, "commands", ()):
            yield from flags_of(command.commands[name])

    flags = set(flags_of(get_command(app)))
    assert {"--zone", "--state"} <= flags
    assert flags == {flag.lower() for flag in flags}


def test_a_paragraph_of_help_is_broken_only_where_the_terminal_ends():
    assert "answered with 2xx is retried by the rules" in timerwheel("listen", "-h").stdout
    assert "messages are counted first and recalled" in timerwheel("recall", "-h").stdout


def test_a_group_of_commands_without_a_command_shows_its_help():
    shown = timerwheel("groups")
    assert shown.exit_code == 2
    assert "rewind" in shown.output
