"""The systemd unit: what systemd thinks of it, and whether it fits the service that it runs."""

import re
import shlex
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from timerwheel.api.server import FINISH_S_MAX
from timerwheel.cli import systemd
from timerwheel.cli.configuration import OPTIONS, configure, read_file
from timerwheel.cli.main import USAGE

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "packaging" / "systemd"
UNIT = FOLDER / "timerwheel.service"
SETTINGS = FOLDER / "timerwheel.toml"
EXPOSURE_MAX = 20  # of 100; systemd calls this "OK"
ANALYZE = shutil.which("systemd-analyze")

needs_systemd = pytest.mark.skipif(
    ANALYZE is None, reason="systemd-analyze is missing: apt-get install systemd"
)


def directives() -> dict[str, list[str]]:
    """Each directive of the unit, as `Section.Name`, with its values."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in UNIT.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            name, equals, value = line.partition("=")
            assert equals, line
            found.setdefault(f"{section}.{name}", []).append(value)
    return found


def one(name: str) -> str:
    [value] = directives()[f"Service.{name}"]
    return value


def analyze(*arguments: object) -> str:
    done = subprocess.run(
        [ANALYZE, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={"SYSTEMD_COLORS": "0"},
    )
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    return told


@needs_systemd
def test_systemd_has_nothing_to_say_against_the_unit(tmp_path):
    unit = tmp_path / UNIT.name
    # The program is not where it will be: another one stands for it.
    unit.write_text(UNIT.read_text().replace("/opt/timerwheel/bin/timerwheel", "/bin/true"))
    assert analyze("verify", "--man=no", unit) == ""


@needs_systemd
def test_the_unit_leaves_the_service_little_to_do_harm_with():
    analyze("security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", "--no-pager", UNIT)


def test_each_directive_stands_once_but_those_that_add_up():
    assert {name for name, values in directives().items() if len(values) > 1} == {"Service.SystemCallFilter"}


def test_the_service_has_a_user_and_a_directory_of_its_own():
    assert one("User") == one("Group") == "timerwheel"
    assert read_file(SETTINGS)["data"] == Path("/var/lib") / one("StateDirectory")
    assert (one("StateDirectoryMode"), one("UMask")) == ("0700", "0077")
    user = (FOLDER / "timerwheel.sysusers").read_text().splitlines()[-1].split()
    assert user[:2] == ["u", "timerwheel"]


def test_there_is_time_for_an_orderly_stop():
    seconds = re.fullmatch(r"(\d+)s", one("TimeoutStopSec"))
    assert int(seconds[1]) >= 3 * FINISH_S_MAX
    assert (one("KillSignal"), one("KillMode")) == ("SIGTERM", "mixed")


def test_it_is_started_again_unless_its_settings_are_wrong():
    assert one("Restart") == "on-failure"
    assert int(one("RestartPreventExitStatus")) == USAGE
    assert directives()["Unit.StartLimitIntervalSec"] == ["0"]


# ---------------------------------------------------------------------- readiness


def test_the_unit_waits_for_the_word_that_the_service_sends_however_long_it_recovers():
    assert (one("Type"), one("TimeoutStartSec")) == ("notify", "infinity")


@pytest.mark.parametrize("is_a_file", [True, False])
def test_systemd_is_notified_at_the_address_that_it_gives(tmp_path, monkeypatch, is_a_file):
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(name if is_a_file else "\0" + name)
        listening.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", name if is_a_file else "@" + name)
        systemd.notify(systemd.READY)
        assert listening.recv(100) == b"READY=1"


def test_a_supervisor_that_has_gone_is_a_line_in_the_log(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    systemd.notify(systemd.READY)
    assert "cannot notify systemd of READY=1" in caplog.text


def test_nothing_is_notified_without_an_address(monkeypatch, caplog):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    systemd.notify(systemd.READY)
    assert caplog.text == ""


# ---------------------------------------------------------------------- settings


def test_the_unit_reads_the_file_of_settings_that_reload_reads_again():
    program, command, *flags = shlex.split(one("ExecStart"))
    assert (Path(program).name, command) == ("timerwheel", "serve")
    assert flags == ["--config", f"/etc/{one('ConfigurationDirectory')}/{SETTINGS.name}"]
    assert one("ExecReload").split()[-2:] == ["-HUP", "$MAINPID"]


def test_the_page_on_installing_puts_each_file_where_it_is_looked_for():
    page = (ROOT / "doc" / "install.md").read_text()
    placed = dict(re.findall(r"^install -D -m 644 (\S+) (\S+)$", page, re.MULTILINE))
    assert {ROOT / source for source in placed} == set(FOLDER.iterdir())
    found = {Path(source).suffix: target for source, target in placed.items()}
    assert shlex.split(one("ExecStart"))[-1] == found[".toml"]
    assert found[".service"] == "/etc/systemd/system/timerwheel.service"
    assert found[".sysusers"] == "/etc/sysusers.d/timerwheel.conf"


def test_the_example_of_settings_tells_the_defaults(tmp_path):
    text = re.sub(r"^# (\w+ = )", r"\1", SETTINGS.read_text(), flags=re.MULTILINE)
    (tmp_path / "all.toml").write_text(text)
    told = read_file(tmp_path / "all.toml")
    assert {"host", "log_level", "retention"} <= told.keys()
    for name in told.keys() - {"data"}:
        option = OPTIONS[name]
        assert option.default is None or told[name] == option.default


def test_the_example_of_settings_changes_nothing_but_where_the_data_is():
    assert read_file(SETTINGS).keys() == {"data"}
    assert configure({}, {}, SETTINGS).serving == configure({}, {}).serving
