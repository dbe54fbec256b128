"""Shell completion: the scripts by which a shell asks this program for its commands and flags.

A script asks in the variable `_TIMERWHEEL_COMPLETE`, which typer answers before any command runs. Typer's own
options for it are not used: one tells the script of the shell that it finds itself in, which is none when a
package is built, and the other one writes into people's start-up files.
"""

import typer
import typer.completion

SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_TIMERWHEEL_COMPLETE"


def answer_shells() -> None:
    """Have typer answer what the scripts ask; to be called before the program begins."""
    typer.completion.completion_init()  # type: ignore[attr-defined]


def show(shell: str | None) -> None:
    """Print the script of a shell and end; None does nothing. Raises BadParameter for any other shell."""
    if shell is None:
        return
    if shell not in SHELLS:
        raise typer.BadParameter(f"{shell!r}: give {', '.join(SHELLS[:-1])} or {SHELLS[-1]}")
    script = typer.completion.get_completion_script  # type: ignore[attr-defined]
    print(script(prog_name="timerwheel", complete_var=_VARIABLE, shell=shell))
    raise typer.Exit
