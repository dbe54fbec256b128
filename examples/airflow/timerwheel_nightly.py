"""A nightly DAG for Airflow 3: archive what is sealed, then prove that every timer was handled.

Put it into the folder of DAGs of an Airflow whose workers have `timerwheel[spark]` and Java 17, and set the
variables below in its environment. The task `audit` fails if the audit finds something, and if it cannot run:
its log says which.
"""

import os
from datetime import timedelta

import pendulum
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

DATA = os.environ.get("TIMERWHEEL_DATA", "/srv/timerwheel/node-*")
LAKE = os.environ.get("TIMERWHEEL_LAKE", "s3://lake/timerwheel")
MASTER = os.environ.get("TIMERWHEEL_SPARK_MASTER", "local[*]")
METRICS = os.environ.get("TIMERWHEEL_METRICS", "/var/lib/node_exporter")

with DAG(
    dag_id="timerwheel_nightly",
    schedule="30 2 * * *",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,  # a run reads what is there now, so there is nothing to catch up with
    max_active_runs=1,
    default_args={
        "retries": 2,
        "retry_delay": timedelta(minutes=10),
        "append_env": True,
        "env": {"TIMERWHEEL_DATA": DATA, "TIMERWHEEL_SPARK_MASTER": MASTER},
    },
) as dag:
    archive = BashOperator(
        task_id="archive",
        bash_command=f"timerwheel archive --to '{LAKE}/archive' --verify --metrics '{METRICS}/archive.prom'",
    )
    audit = BashOperator(
        task_id="audit",
        # A retry must not find the directory of the attempt before.
        bash_command=(
            f"timerwheel audit --checkpoint '{LAKE}/checkpoint' --staging '{LAKE}/staging' "
            f"--metrics '{METRICS}/audit.prom' --out '{LAKE}/audits/{{{{ ds }}}}-{{{{ ti.try_number }}}}'"
        ),
    )
    archive >> audit
