"""Dockerfile and compose.yaml: what linters think of them, whether they fit the service and each other."""

import re
import shutil
import subprocess
import sys
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness.dockerfile import instructions
from timerwheel.api.server import FINISH_S_MAX
from timerwheel.cli.configuration import configure

ROOT = Path(__file__).parents[3]
DOCKERFILE = ROOT / "Dockerfile"


@cache
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "compose.yaml").read_text())


def service() -> dict[str, Any]:
    return compose()["services"]["timerwheel"]


def values(instruction: str) -> list[str]:
    return [value for name, value in instructions(DOCKERFILE) if name == instruction]


def run(*command: object) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_the_linter_of_dockerfiles_finds_nothing():
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if hadolint is None:
        pytest.skip("hadolint is missing: it comes with pip install -e '.[dev]' where there is one")
    run(hadolint, "--no-color", DOCKERFILE)


def test_the_compose_file_is_one_by_its_specification():
    run(sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", "compose.yaml")


def test_the_compose_file_of_the_cluster_is_one_too_and_its_settings_are_those_of_the_service():
    path = "examples/cluster/compose.yaml"
    run(sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", path)
    nodes = [one for one in yaml.safe_load((ROOT / path).read_text())["services"].values() if "build" in one]
    assert len(nodes) == 2
    for node in nodes:
        settings = {name: str(value) for name, value in node["environment"].items()}
        found = configure({}, settings)
        assert found.serving.shards == 3
        assert not found.ignored


def test_each_base_is_pinned_to_a_version():
    stages: set[str] = set()
    outside = []
    for value in values("FROM"):
        source, _, name = value.partition(" AS ")
        outside += [] if source in stages else [source]
        stages.add(name)
    images = [one["image"] for one in compose()["services"].values() if "build" not in one]
    assert len(outside) == 1
    for image in [*outside, *images]:
        assert re.search(r":v?\d+\.\d+\.\d+", image), f"{image} is not pinned"


def test_the_image_runs_as_nobody_and_keeps_its_data_in_a_volume():
    uid, _, gid = values("USER")[-1].partition(":")
    assert int(uid) == int(gid) > 1000
    [volume] = values("VOLUME")
    assert f"--owner={uid} --group={gid} --mode=0700 {volume}" in values("RUN")[-1]
    assert f"TIMERWHEEL_DATA={volume} " in values("ENV")[-1]


def test_variables_of_the_image_are_settings_and_let_nobody_in_unasked():
    variables = dict(re.findall(r"(TIMERWHEEL_\w+)=(\S+)", values("ENV")[-1]))
    found = configure({}, variables | service().get("environment", {}))
    assert found.ignored == []
    assert not found.serving.is_loopback
    assert not found.serving.open_to_all
    assert values("EXPOSE") == [str(found.serving.port)]


def test_every_published_port_is_reached_from_this_machine_only():
    [port] = values("EXPOSE")
    for name, one in compose()["services"].items():
        for published in one["ports"]:
            address, _, inside = published.split(":")
            assert ip_address(address).is_loopback
            assert name != "timerwheel" or inside == port


def test_what_the_compose_file_mounts_is_there():
    named = set(compose()["volumes"])
    used = set()
    for one in compose()["services"].values():
        for volume in one["volumes"]:
            source = volume.split(":")[0]
            used |= {source} & named
            assert source in named or (ROOT / source).exists(), source
    assert used == named
    assert values("VOLUME")[0] in [volume.split(":")[1] for volume in service()["volumes"]]


def test_no_container_has_more_rights_than_it_needs():
    for one in compose()["services"].values():
        assert one["read_only"]
        assert one["cap_drop"] == ["ALL"]
        assert one["security_opt"] == ["no-new-privileges:true"]
        assert "privileged" not in one


def test_there_is_time_for_an_orderly_stop():
    assert int(service()["stop_grace_period"].removesuffix("s")) >= 3 * FINISH_S_MAX


def test_prometheus_finds_its_configuration_its_rules_and_the_service():
    mounts = dict(volume.split(":")[:2] for volume in compose()["services"]["prometheus"]["volumes"])
    [folder] = [ROOT / outside for outside, inside in mounts.items() if inside == "/etc/prometheus"]
    config = yaml.safe_load((folder / "prometheus.yml").read_text())
    [job] = config["scrape_configs"]
    [port] = values("EXPOSE")
    assert job["static_configs"] == [{"targets": [f"timerwheel:{port}"]}]
    for rules in config["rule_files"]:
        assert (folder / rules).is_file(), rules


def test_the_builder_is_sent_what_is_copied_and_nothing_else():
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    copied = {
        source for value in values("COPY") if not value.startswith("--from") for source in value.split()[:-1]
    }
    assert lines[0] == "*"
    assert {line.removeprefix("!") for line in lines[1:] if line.startswith("!")} == copied
