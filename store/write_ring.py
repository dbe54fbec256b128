"""Writes that the kernel carries out while the caller goes on: an io_uring with room for one of them.

    begin -> [kernel: write directly, flush the disk] -> `fd` is readable -> ended

A thread that writes and syncs costs two hand-overs for each write, to it and back. Here the caller hands the
write to a worker of the kernel, and learns of its end where it waits for everything else: by a descriptor.

Invariants:
1. At most one write is in flight, so none overtakes another, and no two share a sector.
2. `begin` never waits for the disk. The kernel could carry out most writes at once in the calling thread, but
   then a frozen file system or a full journal would hold up the caller. So each goes to a worker.
3. The kernel has the bytes in a buffer of the ring. It is freed only when no write is in flight.
4. A write that ended with all its bytes is durable: the kernel has flushed the disk (RWF_DSYNC).

One thread begins writes and takes their ends; `close` may be called by another, after the last of these.

The interface of the kernel: io_uring_setup(2), io_uring_enter(2), <linux/io_uring.h>. The structures are the
same on all architectures with numbers in little-endian order; others get no ring.
"""

import ctypes
import errno
import mmap
import os
import struct
import sys

BUFFER_BYTES = 32 * 1024
"""The largest write."""
_SETUP, _ENTER = 425, 426  # the numbers of the calls, the same on all architectures but Alpha
_ENTRIES = 1
_SINGLE_MMAP = 1 << 0  # features of a ring: one mapping for both queues (Linux 5.4)
_RW_CUR_POS = 1 << 3  # Linux 5.6, which brought IORING_OP_WRITE as well
_GETEVENTS = 1 << 0
_OFF_SQES = 0x10000000
_OP_WRITE = 23
_IOSQE_ASYNC = 1 << 4
_RWF_DSYNC = 1 << 1

# struct io_uring_params: entries, flags, features; then the places of both queues' fields in their mapping.
_PARAMS = struct.Struct("<10I" + "8IQ" + "8IQ")
_FEATURES = 5
_SQ_TAIL, _SQ_ARRAY = 10 + 1, 10 + 6
_CQ_HEAD, _CQ_TAIL, _CQES = 19 + 0, 19 + 1, 19 + 5
_CQ_ENTRIES = 1

# struct io_uring_sqe: opcode, flags, ioprio, fd, offset, address, length, flags of the write, user data.
_SQE = struct.Struct("<BBHiQQIIQ24x")
_CQE = struct.Struct("<QiI")  # user data, result, flags
_U32 = struct.Struct("<I")
_NUMBERS = 1 << 32


class WriteRing:
    """See the module."""

    def __init__(self) -> None:
        """Raises OSError if this system gives no ring."""
        if sys.platform != "linux" or sys.byteorder != "little":
            raise OSError(errno.ENOSYS, "no io_uring")
        # The quick call keeps the interpreter's lock; the one that waits gives it up.
        self._quick = ctypes.PyDLL(None, use_errno=True).syscall
        self._waiting = ctypes.CDLL(None, use_errno=True).syscall
        for call in (self._quick, self._waiting):
            call.restype = ctypes.c_long
        raw = ctypes.create_string_buffer(_PARAMS.size)
        self._fd: int = self._quick(ctypes.c_long(_SETUP), ctypes.c_uint(_ENTRIES), raw)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), f"io_uring_setup: {os.strerror(ctypes.get_errno())}")
        self._process = os.getpid()
        self._begun = 0  # writes so far
        self.in_flight = False
        try:
            self._map(_PARAMS.unpack(raw.raw))
        except BaseException:
            os.close(self._fd)
            self._fd = -1
            raise

    def _map(self, params: tuple[int, ...]) -> None:
        wanted = _SINGLE_MMAP | _RW_CUR_POS
        if params[_FEATURES] & wanted != wanted:
            raise OSError(errno.ENOSYS, "the kernel is older than Linux 5.6")
        self._sq_tail, self._cq_head, self._cq_tail = params[_SQ_TAIL], params[_CQ_HEAD], params[_CQ_TAIL]
        self._cqes, self._cq_mask = params[_CQES], params[_CQ_ENTRIES] - 1
        size = max(params[_SQ_ARRAY] + _ENTRIES * _U32.size, self._cqes + params[_CQ_ENTRIES] * _CQE.size)
        self._queues = mmap.mmap(self._fd, size)
        self._sqes = mmap.mmap(self._fd, _ENTRIES * _SQE.size, offset=_OFF_SQES)
        self._buffer = mmap.mmap(-1, BUFFER_BYTES)  # aligned to a page
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._buffer))
        _U32.pack_into(self._queues, params[_SQ_ARRAY], 0)  # the only entry stands for itself

    @property
    def fd(self) -> int:
        """Readable when a write has ended; -1 once closed."""
        return self._fd

    def begin(self, fd: int, position: int, data: bytes) -> bool:
        """Begin a write to a descriptor for direct writes; False if the kernel does not take it now."""
        assert not self.in_flight, "a write is in flight"
        size = len(data)
        self._buffer[:size] = data
        _SQE.pack_into(
            self._sqes, 0, _OP_WRITE, _IOSQE_ASYNC, 0, fd, position, self._address, size, _RWF_DSYNC, 0
        )
        _U32.pack_into(self._queues, self._sq_tail, (self._begun + 1) % _NUMBERS)
        taken: int = self._quick(_ENTER_CALL, self._fd, 1, 0, 0, None, 0)
        if taken != 1:
            _U32.pack_into(self._queues, self._sq_tail, self._begun % _NUMBERS)
            return False
        self._begun += 1
        self.in_flight = True
        return True

    @property
    def has_ended(self) -> bool:
        """Whether a write has ended and its end was not taken yet."""
        head: int = _U32.unpack_from(self._queues, self._cq_head)[0]
        tail: int = _U32.unpack_from(self._queues, self._cq_tail)[0]
        return head != tail

    def ended(self) -> int | None:
        """Take the end of the write: the bytes written, or an error's number below 0; None before it."""
        if not self.has_ended:
            return None
        head: int = _U32.unpack_from(self._queues, self._cq_head)[0]
        result: int = _CQE.unpack_from(self._queues, self._cqes + (head & self._cq_mask) * _CQE.size)[1]
        _U32.pack_into(self._queues, self._cq_head, (head + 1) % _NUMBERS)
        self.in_flight = False
        return result

    def wait(self) -> int:
        """Wait for the end of the write in flight, and take it."""
        while (result := self.ended()) is None:
            self._waiting(_ENTER_CALL, self._fd, 0, 1, _GETEVENTS, None, 0)
        return result

    def close(self) -> None:
        """Wait for a write in flight, and release the ring once. A forked child has no part in the write."""
        if self._fd < 0:
            return
        if self.in_flight and os.getpid() == self._process:
            self.wait()
        self._queues.close()  # each mapping has a descriptor of its own
        self._sqes.close()
        os.close(self._fd)
        self._fd = -1

    def __del__(self) -> None:
        """Release a ring that was dropped without `close`."""
        if getattr(self, "_fd", -1) >= 0:
            self.close()


_ENTER_CALL = ctypes.c_long(_ENTER)
