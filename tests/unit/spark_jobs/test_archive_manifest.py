"""The manifest of an archive: no damage of one byte passes."""

import pytest

from timerwheel.spark_jobs.archive.manifest import (
    FORMAT,
    ArchivedSegment,
    Manifest,
    decode_manifest,
    encode_manifest,
)

SEGMENT = ArchivedSegment(
    base=0, end=4096, made_ms=1, records=0, last_store_ms=2, queues=[], lost=[], beginning=None
)
MANIFEST = Manifest(format=FORMAT, log_id="0" * 32, node="node-1", segments=[SEGMENT], files=[])


def test_a_manifest_that_was_written_is_read():
    assert decode_manifest(encode_manifest(MANIFEST)) == MANIFEST


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_anywhere_is_noticed(bit):
    raw = encode_manifest(MANIFEST)
    for place in range(len(raw)):
        damaged = bytearray(raw)
        damaged[place] ^= 1 << bit
        with pytest.raises(ValueError):  # noqa: PT011 - the reasons differ
            decode_manifest(bytes(damaged))
