"""The command line as `python -m timerwheel`."""

from timerwheel.cli.main import app

app(prog_name="timerwheel")
