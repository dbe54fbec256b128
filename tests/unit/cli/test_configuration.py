"""Settings come from flags, variables and a file, under one name each, and all are checked."""

import ast
import re
from pathlib import Path

import pytest

from timerwheel.cli.config import as_toml
from timerwheel.cli.configuration import OPTIONS, configure, misspelt, read_file
from timerwheel.errors import SettingsError

ROOT = Path(__file__).parents[3]
DAY_MS = 86_400_000


def written(tmp_path, text) -> Path:
    path = tmp_path / "timerwheel.toml"
    path.write_text(text)
    return path


def test_flags_win_then_variables_then_the_file_then_the_defaults(tmp_path):
    file = written(tmp_path, 'retention = "1d"\nport = 1\nflush = "async"\n')
    found = configure({"port": 3}, {"TIMERWHEEL_PORT": "2", "TIMERWHEEL_FLUSH": "sync"}, file)
    assert (found.serving.port, found.settings.flush) == (3, "sync")
    assert (found.settings.retention_ms, found.settings.near_ms) == (DAY_MS, 10_000)
    sources = {name: found.values[name].source for name in ("port", "flush", "retention", "near")}
    assert sources == {
        "port": "--port",
        "flush": "TIMERWHEEL_FLUSH",
        "retention": str(file),
        "near": "default",
    }


def test_each_setting_can_be_written_in_every_place_and_means_the_same(tmp_path):
    for option in OPTIONS.values():
        text = option.write(option.default)
        if not text or option.name in ("data", "host"):
            continue
        by_variable = configure({}, {option.variable: text}, None).values[option.name].value
        by_file = read_file(written(tmp_path, f'{option.name} = "{text}"\n'))[option.name]
        assert by_variable == by_file == option.default


def test_the_printed_file_says_what_held(tmp_path):
    flags = {"retention_archived_only": True, "max_delay": 2 * DAY_MS, "host": "::1", "levels": "1s 5s"}
    found = configure(flags, {}, None)
    again = configure({}, {}, written(tmp_path, as_toml(found.values)))
    assert (again.settings, again.serving) == (found.settings, found.serving)
    changed = [line for line in as_toml(found.values).splitlines() if line and not line.startswith("#")]
    assert len(changed) == len(flags)


def test_numbers_words_and_lists_may_stand_as_toml_has_them(tmp_path):
    text = 'port = 80\nopen_to_all = true\nbody_size_max = 1024\ncors_origins = ["https://a.example", "https://b.example"]'
    found = read_file(written(tmp_path, text))
    assert found == {
        "port": 80,
        "open_to_all": True,
        "body_size_max": 1024,
        "cors_origins": "https://a.example https://b.example",
    }


CHANGED = {
    "number": 7,
    "length": 1_001,
    "size": (1 << 20) + 1,
    "path": Path('/srv/a "b" \\ c\x7f'),
    "yes or no": True,
    "text": "https://a.example",
}
CHANGED_BY_NAME = {
    "rocketmq": "127.0.0.1:9876",
    "rocketmq_address": "[::1]:9876",
    "rocketmq_grpc": "127.0.0.1:8081",
    "kafka": "127.0.0.1:9092,[::1]:9093",
    "journal": "kafka://127.0.0.1:9092,[::1]:9093/orders",
    "host": "::1",
    "fast_path": False,
    "direct_io": False,
    "levels": "1s 65s",
    "gather": 7,
    "segment_size": 4_097,
}


def test_the_printed_file_gives_the_same_settings_whatever_each_of_them_is(tmp_path):
    flags = {
        name: option.words[-1] if option.words else CHANGED_BY_NAME.get(name, CHANGED.get(option.kind))
        for name, option in OPTIONS.items()
    }
    found = configure(flags, {}, None)
    assert [name for name, value in found.values.items() if value.value == OPTIONS[name].default] == []
    again = configure({}, {}, written(tmp_path, as_toml(found.values)))
    assert (again.settings, again.serving) == (found.settings, found.serving)


def test_the_printed_file_gives_the_same_settings_with_its_comments_taken_away(tmp_path):
    found = configure({}, {}, None)
    lines = as_toml(found.values).splitlines()
    bare = [line.removeprefix("# ") for line in lines if " = " in line]
    assert [line for line in bare if line.startswith("tls_key")] == ['tls_key = ""']
    again = configure({}, {}, written(tmp_path, "\n".join(bare)))
    assert (len(bare), again.settings, again.serving) == (len(OPTIONS), found.settings, found.serving)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("retenton = '3d'", r"retenton: .* did you mean retention\?"),
        ("retention_ms = '3d'", r"retention_ms: .* did you mean retention\?"),
        ("retention = 3", "retention: 3 is not a duration in quotes"),
        ("retention = '3 parsecs'", "retention: .*3 parsecs"),
        ("body_size_max = 'much'", "body_size_max: 'much' is not a size"),
        ("port = true", "port: True is not a whole number"),
        ("port = 'http'", "port: 'http' is not a whole number"),
        ("open_to_all = 'maybe'", "open_to_all: 'maybe': give yes or no"),
        ("flush = 'later'", "flush: 'later': give sync or async"),
        ("data = ''", "data: give a path"),
        ("data = '~nobody-has-this-name/d'", "data: .*no such user"),
        ("[server]\nport = 1", "server: no such setting"),
        ("port 80", "is not TOML"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_the_file(tmp_path, text, named):
    file = written(tmp_path, text)
    with pytest.raises(SettingsError, match=f"{file}.*{named}"):
        configure({}, {}, file)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"none\.toml: No such file"):
        configure({}, {}, tmp_path / "none.toml")


def test_what_is_wrong_in_a_variable_is_named_by_it():
    with pytest.raises(SettingsError, match=r"TIMERWHEEL_RETENTION: .*3 parsecs"):
        configure({}, {"TIMERWHEEL_RETENTION": "3 parsecs"}, None)


def test_a_value_out_of_range_is_reported_with_its_source(tmp_path):
    with pytest.raises(
        SettingsError,
        match=r"retention_interval = 0ms: must be from 1ms to 1d \(from TIMERWHEEL_RETENTION_INTERVAL\)",
    ):
        configure({}, {"TIMERWHEEL_RETENTION_INTERVAL": "0"}, None)
    file = written(tmp_path, 'tls_key = "key.pem"')
    with pytest.raises(SettingsError, match=r"tls_certificate: give tls_certificate and tls_key together"):
        configure({}, {}, file)


def test_variables_that_name_no_setting_are_ignored_and_reported():
    told = {
        "TIMERWHEEL_URL": "http://x",
        "TIMERWHEEL_PORT": "tcp://10.0.0.1:8686",
        "TIMERWHEEL_SERVICE_HOST": "10.0.0.1",
        "HOME": "/root",
    }
    found = configure({}, told, None)
    assert found.serving.port == 8686
    assert found.ignored == ["TIMERWHEEL_PORT", "TIMERWHEEL_SERVICE_HOST"]


def test_a_level_table_that_cannot_be_is_an_error():
    with pytest.raises(SettingsError, match="zz"):
        configure({"levels": "1s zz"}, {}, None)


@pytest.mark.parametrize("variable", ["SERVICE_HOST", "SERVICE_PORT", "PORT", "PORT_8686_TCP_ADDR"])
def test_what_kubernetes_sets_is_not_taken_for_misspelt(variable):
    assert misspelt(f"TIMERWHEEL_{variable}") == ""


def test_a_misspelt_variable_is_reported_with_a_suggestion():
    assert misspelt("TIMERWHEEL_RETENTON").endswith("is ignored; did you mean retention?")


def test_certificates_and_their_authorities_go_together():
    certificate, key = Path("cert.pem"), Path("key.pem")
    assert configure({"tls_certificate": certificate, "tls_key": key}, {}, None).serving.tls_key == key
    with pytest.raises(SettingsError, match="tls_key"):
        configure({"tls_certificate": certificate}, {}, None)
    with pytest.raises(SettingsError, match="tls_client_ca"):
        configure({"tls_client_ca": certificate}, {}, None)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("wheel.example", False),
    ],
)
def test_only_what_this_machine_alone_can_reach_counts_as_loopback(host, loopback):
    assert configure({"host": host}, {}, None).serving.is_loopback is loopback


@pytest.mark.parametrize(
    "host", ["", "*", "[::1]", "127.0.0.1:8686", "http://localhost", "256.1.1.1", "local host", "a..b"]
)
def test_what_nothing_can_listen_on_is_refused_with_what_can_be(host):
    with pytest.raises(SettingsError, match=r"host = '.*127\.0\.0\.1 for .* :: to listen .*\(from --host\)"):
        configure({"host": host}, {}, None)


@pytest.mark.parametrize(
    "host", ["::", "fe80::1%eth0", "0.0.0.0", "localhost", "timers_1.example.", "zähler"]
)
def test_addresses_and_names_can_be_listened_on(host):
    assert configure({"host": host}, {}, None).serving.host == host


def test_a_file_in_the_place_of_the_data_directory_or_of_its_log_is_reported(tmp_path):
    file = tmp_path / "log"
    file.touch()
    for data, wrong in ((file, "is a file"), (tmp_path, "is not a data directory: its log is a file")):
        with pytest.raises(SettingsError, match=rf"data = {data} {wrong}.*\(from --data\)"):
            configure({"data": data}, {}, None)


def test_texts_name_settings_as_users_know_them():
    """No string with words in it has the name of a field whose option is called otherwise."""
    fields = [option.field for name, option in OPTIONS.items() if name != option.field]
    named = re.compile(rf"\b({'|'.join(fields)})\b").search
    found = []
    for package in ("api", "store", "timerwheel", "spark_jobs"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    text = "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
                    if " " in text.strip() and named(text):
                        found.append(text)
    assert found == []


@pytest.mark.parametrize("name", [".", "log", "index"])
def test_a_link_to_a_disk_that_is_not_mounted_is_named(tmp_path, name):
    data = tmp_path / "data"
    link = data / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to("nowhere")
    with pytest.raises(SettingsError, match=f"{link} is a link that leads nowhere; is its disk mounted"):
        configure({"data": data}, {}, None)
