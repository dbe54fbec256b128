"""Shell completion: scripts with which a shell asks this program for its commands and flags.

A script sets the variable `_TIMERWHEEL_COMPLETE`; typer answers it before any command runs. Typer's own
options are switched off: one needs a running shell, which a package build does not have, and the other edits
the user's start-up files.
"""

import typer
import typer.completion

SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_TIMERWHEEL_COMPLETE"


def show(shell: str | None) -> None:
    """Print the script of a shell and exit; None does nothing. Raises BadParameter for an unknown shell."""
    if shell is None:
        return
    if shell not in SHELLS:
        raise typer.BadParameter(f"{shell!r}: give {', '.join(SHELLS[:-1])} or {SHELLS[-1]}")
    script = typer.completion.get_completion_script  # type: ignore[attr-defined]
    print(script(prog_name="timerwheel", complete_var=_VARIABLE, shell=shell))
    raise typer.Exit
