"""The command line as `timerwheel` and as `python -m timerwheel`."""

import signal


def main() -> None:
    """Run the command line. Ctrl-C ends it quietly from the first moment, also while its modules load."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # else it is ignored, as by nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from timerwheel.cli.main import app  # noqa: PLC0415 - this takes a while

    signal.signal(signal.SIGINT, before)
    app(prog_name="timerwheel")


if __name__ == "__main__":
    main()
