import fcntl
import pwd

from timerwheel.cli.own_groups import OwnGroup, noted, of_dead_commands, state_directory

OWN = OwnGroup("http://127.0.0.1:8686", "orders", "listen-1")


def dead(folder):
    return [own for own, _ in of_dead_commands(OWN.url, folder)]


def test_a_group_is_dead_once_its_command_is(tmp_path):
    with noted(OWN, tmp_path) as note:
        assert note is not None
        assert dead(tmp_path) == []
    assert dead(tmp_path) == [OWN]
    note.unlink()
    assert dead(tmp_path) == []


def test_a_note_of_a_command_that_was_killed_before_it_wrote_it_is_removed(tmp_path):
    (tmp_path / "listen-0.json").touch()
    assert dead(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_note_that_another_command_takes_for_a_dead_ones_is_made_again(tmp_path, monkeypatch):
    flock = fcntl.flock
    looks = 0

    def looked_at(fd: int, how: int) -> None:
        nonlocal looks
        if how == fcntl.LOCK_EX and looks < 2:
            looks += 1
            assert dead(tmp_path) == []
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", looked_at)
    with noted(OWN, tmp_path) as note:
        assert note is not None
        assert note.exists()
        assert dead(tmp_path) == []
    assert looks == 2
    assert dead(tmp_path) == [OWN]


def test_a_user_without_a_home_has_no_notes(tmp_path, monkeypatch):
    def unknown(uid):
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    with noted(OWN, state_directory()) as note:
        assert note is None
    assert dead(state_directory()) == []
    assert list(tmp_path.iterdir()) == []
