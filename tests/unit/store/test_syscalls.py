"""The model of durability itself: each promise that it watches can be broken, and it says so."""

from pathlib import Path

import pytest

from tests.harness.syscalls import Disk, calls_of

LOG = "/nowhere/data/log"
ANSWER = '1 write(9<socket:[7]>, "HTTP/1.1 201 Created", 20) = 20'
SOUND = [
    f'1 mkdir("{LOG}", 0750) = 0',
    "1 fsync(3</nowhere/data>) = 0",
    f'1 openat(AT_FDCWD</>, "{LOG}/0.log", O_RDWR|O_CREAT|O_EXCL, 0640) = 3<{LOG}/0.log>',
    f'1 pwrite64(3<{LOG}/0.log>, "head", 4, 0) = 4',
    f"1 fdatasync(3<{LOG}/0.log>) = 0",
    f"1 fsync(4<{LOG}>) = 0",
    f'2 pwrite64(3<{LOG}/0.log>, "body", 4, 4) = 4',
    f"2 fdatasync(3<{LOG}/0.log> <unfinished ...>",
    '1 sendto(9<socket:[7]>, "other", 5) = 5',
    "2 <... fdatasync resumed>) = 0",
    ANSWER,
    f'1 openat(AT_FDCWD</>, "{LOG}/start.tmp", O_WRONLY|O_CREAT|O_TRUNC, 0640) = 5<{LOG}/start.tmp>',
    f'1 write(5<{LOG}/start.tmp>, "{{}}", 2) = 2',
    f"1 fsync(5<{LOG}/start.tmp>) = 0",
    f'1 rename("{LOG}/start.tmp", "{LOG}/start") = 0',
    f"1 fsync(5<{LOG}>) = 0",
    f'1 unlink("{LOG}/0.log") = 0',
]


def disk(lines: list[str]) -> Disk:
    return Disk(Path("/nowhere/data")).run(lines)


def without(text: str, place: int = 0) -> list[str]:
    found = [number for number, line in enumerate(SOUND) if text in line]
    return [line for number, line in enumerate(SOUND) if number != found[place]]


def test_a_sound_trace_breaks_no_promise():
    found = disk(SOUND)
    assert (found.broken, found.unsynced()) == ([], [])
    assert (found.answers, found.segments, found.removed, found.renamed) == (1, 1, 1, [f"{LOG}/start"])


@pytest.mark.parametrize(
    ("lines", "broken"),
    [
        ([line for line in SOUND if "fdatasync" not in line], f"an answer before a sync of {LOG}/0.log"),
        (without(f"fsync(4<{LOG}>"), f"an answer before a sync of {LOG}/0.log"),
        (without("fsync(5<"), f"{LOG}/start.tmp became {LOG}/start before a sync of {LOG}/start.tmp"),
        (without("fsync(5<", 1), f"{LOG}/0.log was removed before a sync of {LOG}/start"),
    ],
)
def test_each_sync_that_is_left_out_breaks_a_promise(lines, broken):
    assert broken in disk(lines).broken


def test_a_sync_covers_only_what_was_over_when_it_began():
    lines = list(SOUND)
    write = next(number for number, line in enumerate(lines) if '"body"' in line)
    lines[write], lines[write + 1] = lines[write + 1], lines[write]
    assert disk(lines).broken == [f"an answer before a sync of {LOG}/0.log"]


def test_an_answer_while_the_sync_goes_on_is_too_early():
    lines = [line for line in SOUND if line != ANSWER]
    lines.insert(next(n for n, line in enumerate(lines) if "unfinished" in line) + 1, ANSWER)
    assert disk(lines).broken == [f"an answer before a sync of {LOG}/0.log"]


def test_a_segment_must_be_synced_before_its_successor_is_created():
    more = [
        f'1 pwrite64(3<{LOG}/0.log>, "more", 4, 8) = 4',
        f'1 openat(AT_FDCWD</>, "{LOG}/8.log", O_RDWR|O_CREAT|O_EXCL, 0640) = 6<{LOG}/8.log>',
    ]
    assert disk(SOUND[:11] + more).broken == [f"segment {LOG}/8.log was created before a sync of {LOG}/0.log"]


def test_a_directory_that_takes_the_place_of_another_must_be_synced_with_all_in_it():
    new = "/nowhere/data/index.new"
    calls = [
        f'1 mkdir("{new}", 0750) = 0',
        f'1 openat(AT_FDCWD</>, "{new}/data.mdb", O_RDWR|O_CREAT, 0640) = 3<{new}/data.mdb>',
        f'1 pwrite64(3<{new}/data.mdb>, "x", 1, 0) = 1',
        f"1 fsync(3<{new}/data.mdb>) = 0",
        f"1 fsync(4<{new}>) = 0",
        f'1 renameat2(AT_FDCWD</>, "{new}", AT_FDCWD</>, "/nowhere/data/index", RENAME_EXCHANGE) = 0',
        "1 fsync(4</nowhere/data>) = 0",
    ]
    assert disk(calls).broken == []
    assert disk(calls).unsynced() == []
    for left_out in (3, 4):
        found = disk(calls[:left_out] + calls[left_out + 1 :])
        assert found.broken == [f"{new} became /nowhere/data/index before a sync of {new}/data.mdb"]
    assert disk(calls[:-1]).unsynced() == ["/nowhere/data/index", new]


def test_calls_that_failed_or_were_cut_are_left_out():
    lines = [
        '1     openat(AT_FDCWD</>, "/x", O_RDONLY) = -1 ENOENT (No such file)',
        "1 +++ exited with 0 +++",
    ]
    assert list(calls_of([*lines, "1 fsync(3</x>) = ?"])) == []
