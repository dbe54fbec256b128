"""The process that serves a `ForgetfulDisk`: `python -m tests.harness.forgetful_serving MOUNT PLATTER`."""

import errno
import json
import stat
import sys
from pathlib import Path
from typing import Any

import mfusepy

NAMES = "names.json"


class _File:
    """Bytes in memory, and from where on the platter lacks them."""

    def __init__(self, number: int, data: bytes = b"") -> None:
        self.number = number
        self.data = bytearray(data)
        self.mode = stat.S_IFREG | 0o600
        self.changed_from: int | None = None

    def change(self, offset: int) -> None:
        self.changed_from = offset if self.changed_from is None else min(self.changed_from, offset)


class Disk(mfusepy.Operations):
    """The calls of the kernel; paths are `/` and `/name`."""

    use_ns = True

    def __init__(self, platter: Path) -> None:
        self.platter = platter
        names = self.platter / NAMES
        self.names = {
            name: _File(number, self._kept(number))
            for name, number in (json.loads(names.read_bytes()) if names.exists() else {}).items()
        }
        used = [int(path.name) for path in self.platter.iterdir() if path.name.isdigit()]
        self.next_number = max(used, default=0) + 1
        self.open_files: dict[int, _File] = {}
        self.next_handle = 1

    def _kept(self, number: int) -> bytes:
        path = self.platter / str(number)
        return path.read_bytes() if path.exists() else b""

    def _file(self, path: str, handle: int | None = None) -> _File:
        found = self.open_files.get(handle) if handle else self.names.get(path[1:])
        if found is None:
            raise mfusepy.FuseOSError(errno.ENOENT)
        return found

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o700, "st_nlink": 2}
        file = self._file(path, fh)
        return {"st_mode": file.mode, "st_nlink": 1, "st_size": len(file.data)}

    def readdir(self, _path: str, _fh: int) -> list[str]:
        return [".", "..", *self.names]

    def open(self, path: str, _flags: int) -> int:
        return self._opened(self._file(path))

    def create(self, path: str, mode: int, _fi: object = None) -> int:
        file = self.names[path[1:]] = _File(self.next_number)
        file.mode = stat.S_IFREG | (mode & 0o777)
        self.next_number += 1
        return self._opened(file)

    def _opened(self, file: _File) -> int:
        handle, self.next_handle = self.next_handle, self.next_handle + 1
        self.open_files[handle] = file
        return handle

    def release(self, _path: str, fh: int) -> int:
        del self.open_files[fh]
        return 0

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return bytes(self._file(path, fh).data[offset : offset + size])

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        file = self._file(path, fh)
        file.change(min(offset, len(file.data)))
        if offset > len(file.data):
            file.data.extend(bytes(offset - len(file.data)))
        file.data[offset : offset + len(data)] = data
        return len(data)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        file = self._file(path, fh)
        file.change(min(length, len(file.data)))
        file.data[length:] = bytes(max(length - len(file.data), 0))
        return 0

    def unlink(self, path: str) -> int:
        del self.names[path[1:]]
        return 0

    def rename(self, old: str, new: str) -> int:
        self.names[new[1:]] = self.names.pop(old[1:])
        return 0

    def chmod(self, path: str, mode: int) -> int:
        self._file(path).mode = stat.S_IFREG | (mode & 0o777)
        return 0

    def fsync(self, path: str, _datasync: int, fh: int) -> int:
        file = self._file(path, fh)
        kept = self.platter / str(file.number)
        kept.touch()
        if file.changed_from is not None:
            with kept.open("r+b") as to:
                to.seek(file.changed_from)
                to.write(file.data[file.changed_from :])
                to.truncate(len(file.data))
            file.changed_from = None
        return 0

    def fsyncdir(self, _path: str, _datasync: int, _fh: int) -> int:
        new = self.platter / "names.new"
        new.write_text(json.dumps({name: file.number for name, file in self.names.items()}))
        new.replace(self.platter / NAMES)
        return 0

    def statfs(self, _path: str) -> dict[str, int]:
        return {
            "f_bsize": 4096,
            "f_frsize": 4096,
            "f_blocks": 1 << 24,
            "f_bavail": 1 << 24,
            "f_bfree": 1 << 24,
        }


if __name__ == "__main__":
    mfusepy.FUSE(Disk(Path(sys.argv[2])), sys.argv[1], foreground=True, nothreads=True)
