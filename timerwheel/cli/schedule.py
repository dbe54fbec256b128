"""`schedule`: each row of a table as a message, with Spark."""

import contextlib
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import typer

from timerwheel.cli.connection import Service, ServiceOptions
from timerwheel.cli.options import Options, parse_pairs
from timerwheel.cli.output import JsonOutput, Output
from timerwheel.cli.spark_options import (
    Job,
    RunOptions,
    reported,
    require_spark,
    spark_job,
)
from timerwheel.errors import SettingsError
from timerwheel.model.text import printable

if TYPE_CHECKING:
    from timerwheel.spark_jobs.schedule.rows import RowMapping
    from timerwheel.spark_jobs.schedule.sending import Sent, Target
    from timerwheel.spark_jobs.schedule.table import Table

REFUSED_SHOWN = 20
_FORMATS = ("parquet", "csv", "json")
PASSWORD_VARIABLE = "TIMERWHEEL_JDBC_PASSWORD"  # noqa: S105 - its name
_FETCH_ROWS = 1_000
_PANEL = "Database"
_IN_UTC = tuple(f"spark.{where}.defaultJavaOptions=-Duser.timezone=UTC" for where in ("driver", "executor"))
"""Drivers of databases read times without a zone in that of Java's process, and Spark takes some for UTC."""


class Database(NamedTuple):
    """How to read from `jdbc:...`. A password is in no option, as other users can see these."""

    jdbc_user: str | None
    jdbc_password_file: Path | None
    jdbc_driver: str | None
    fetch_size: int | None

    def checked(
        self, url: str, query: str | None, file_format: str | None, *, is_query: bool
    ) -> dict[str, str]:
        """The options of Spark's JDBC source, none for a table of files. Raises SettingsError."""
        if is_query and file_format is not None:
            raise SettingsError("--format belongs to a table of files, not to --from jdbc:...")
        if is_query != (query is not None):
            raise SettingsError("--query belongs to --from jdbc:..., which needs one")
        if query is not None:
            return self.options(url, query)
        if any(value is not None for value in self):
            raise SettingsError("--jdbc-user and the like, and --fetch-size, belong to --from jdbc:...")
        return {}

    def options(self, url: str, query: str) -> dict[str, str]:
        """The options of Spark's JDBC source. Raises SettingsError if the password cannot be read."""
        fetch_rows = _FETCH_ROWS if self.fetch_size is None else self.fetch_size
        given = {
            "url": url,
            "query": query.rstrip().rstrip(";"),  # Spark reads from it as from a table
            "fetchsize": str(fetch_rows),
            "user": self.jdbc_user,
            "password": self._password(),
            "driver": self.jdbc_driver,
        }
        return {name: value for name, value in given.items() if value is not None}

    def _password(self) -> str | None:
        if self.jdbc_password_file is None:
            return os.environ.get(PASSWORD_VARIABLE)
        try:
            return self.jdbc_password_file.read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = (isinstance(error, OSError) and error.strerror) or str(error)
            raise SettingsError(f"--jdbc-password-file {self.jdbc_password_file}: {reason}") from None


def _database_options() -> Options:
    def option(flag: str, help_text: str, **more: Any) -> Any:  # noqa: ANN401 - as typer takes them
        return typer.Option(flag, help=help_text, rich_help_panel=_PANEL, **more)

    user = option("--jdbc-user", "The user of the database.", metavar="NAME")
    password = option(
        "--jdbc-password-file", f"A file with the password; else {PASSWORD_VARIABLE} has it.", metavar="FILE"
    )
    driver = option("--jdbc-driver", "The class of the driver in a jar that you give.", metavar="CLASS")
    size = option(
        "--fetch-size", "Rows that the driver fetches at once.", metavar="N", min=0, show_default="1000"
    )
    return Options(
        {
            "jdbc_user": (Annotated[str | None, user], None),
            "jdbc_password_file": (Annotated[Path | None, password], None),
            "jdbc_driver": (Annotated[str | None, driver], None),
            "fetch_size": (Annotated[int | None, size], None),
        },
        Database,
    )


DatabaseOptions = Annotated[Database, _database_options()]


def schedule(
    *,
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="URL",
            help="The table: a file, a directory of files, a URL that fsspec reads, or jdbc:...",
        ),
    ],
    due_column: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Due times: timestamps, text such as 2027-01-15T08:00:00Z, or epoch ms."
        ),
    ],
    topic: Annotated[str | None, typer.Option(help="The topic of all rows.")] = None,
    topic_column: Annotated[str | None, typer.Option(metavar="NAME", help="The topic of each row.")] = None,
    body_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Bodies. Default: the column body, or without one the row as JSON."
        ),
    ] = None,
    key_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Deduplication keys. Default: a digest, so equal rows are one message."
        ),
    ] = None,
    tags_column: Annotated[str | None, typer.Option(metavar="NAME", help="Tags.")] = None,
    property_column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A property under this name, or a map of them; may be repeated."),
    ] = None,
    zone: Annotated[
        str | None,
        typer.Option("--zone", metavar="ZONE", help="Of times without one, such as Europe/Berlin."),
    ] = None,
    file_format: Annotated[
        str | None,
        typer.Option("--format", metavar="|".join(_FORMATS), help="If the file names do not say it."),
    ] = None,
    query: Annotated[str | None, typer.Option(metavar="SQL", help="The query, for jdbc:...")] = None,
    rate: Annotated[
        float | None, typer.Option(min=1, metavar="N", help="At most N rows a second in all.")
    ] = None,
    database: DatabaseOptions,
    options: RunOptions,
    service: ServiceOptions,
    output: JsonOutput,
) -> None:
    """Schedule each row of a table as a message, once, with Spark; exit code 1 if rows were refused.

    Run it again after a failure: rows that are scheduled are not scheduled twice.
    """
    require_spark()
    import pyarrow as pa

    parse_pairs(options.conf, "--conf")
    if file_format is not None and file_format not in _FORMATS:
        raise typer.BadParameter(f"choose from {', '.join(_FORMATS)}", param_hint="--format")
    if rate is not None and not math.isfinite(rate):
        raise typer.BadParameter("give a number of rows a second", param_hint="--rate")
    if (topic is None) == (topic_column is None):
        raise typer.BadParameter("give one of --topic and --topic-column", param_hint="--topic")
    from timerwheel.spark_jobs.monitoring.lineage import topic_of
    from timerwheel.spark_jobs.preflight import check_executors, has_executors
    from timerwheel.spark_jobs.schedule.job import JDBC, schedule_query, schedule_table
    from timerwheel.spark_jobs.schedule.reach import calls
    from timerwheel.spark_jobs.schedule.rows import RowMapping

    is_query = source.startswith(JDBC)
    query_options = database.checked(source, query, file_format, is_query=is_query)
    if is_query:
        options = options._replace(conf=[*_IN_UTC, *(options.conf or ())])
    mapping = RowMapping(
        due_column, topic, topic_column, body_column, key_column, tags_column,
        properties=property_column or (), zone=zone,
    )  # fmt: skip
    reads = [] if is_query else [source]
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(reported("schedule", options, reads, [topic_of(service.url, topic)]))
        table = None if is_query else _opened(source, file_format, mapping)
        # Before Spark starts, which takes seconds.
        service.ask(lambda client: client.send_arrow(pa.table({"topic": pa.array([], pa.string())})))
        target = _target(service, rate)
        job = stack.enter_context(spark_job(run, stages=False))
        if has_executors(str(job.spark.sparkContext.master)):
            check_executors(job.spark, (), calls(target, source, table))
        if table is not None:
            sent = schedule_table(job.spark, job.progress, table, mapping, target)
        else:
            sent = schedule_query(job.spark, job.progress, query_options, mapping, target)
        _measure(sent, job)
        seconds = job.progress.seconds
    _show(sent, seconds, output, has_keys=key_column is not None)
    if sent.refused:
        raise typer.Exit(1)


def _opened(source: str, file_format: str | None, mapping: "RowMapping") -> "Table":
    from timerwheel.spark_jobs.schedule.table import open_table

    table = open_table(source, file_format)
    mapping.check(table.columns)
    return table


def _target(service: Service, rate: float | None) -> "Target":
    from timerwheel.spark_jobs.schedule.sending import Target

    ca, cert = (None if path is None else str(path.absolute()) for path in (service.ca, service.cert))
    return Target(service.url, service.secret, ca, cert, rate)


def _measure(sent: "Sent", job: Job) -> None:
    counts = {"stored": sent.stored, "duplicate": sent.duplicates, "refused": len(sent.refused)}
    job.metrics.set_each(
        "timerwheel_schedule_rows", "Rows of the table by what came of them", "result", counts
    )


def _show(sent: "Sent", seconds: dict[str, float], output: Output, *, has_keys: bool) -> None:
    document = {
        "rows": sent.rows,
        "stored": sent.stored,
        "duplicates": sent.duplicates,
        "refused": len(sent.refused),
        "refused_rows": msgspec.to_builtins(sent.refused[:1_000]),
        "stage_seconds": seconds,
    }
    if output.as_data(document):
        return
    output.line(
        f"{sent.rows:,} rows: {sent.stored:,} scheduled, {sent.duplicates:,} had been scheduled before, "
        f"{len(sent.refused):,} refused"
    )
    if sent.refused:
        named = sent.refused[:REFUSED_SHOWN]
        # A key that is a digest names no row.
        names = [one.key if has_keys else one.row for one in named]
        rows = [
            (printable(name), one.code, printable(one.detail)) for name, one in zip(names, named, strict=True)
        ]
        output.table(("key" if has_keys else "=row", "code", "=reason"), rows)
        if len(sent.refused) > REFUSED_SHOWN:
            output.line(f"and {len(sent.refused) - REFUSED_SHOWN:,} more; --json has up to 1,000")
