"""`python -m bench`: see `--help`."""

from bench.cli import main

if __name__ == "__main__":
    main()
