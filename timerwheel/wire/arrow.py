"""Apache Arrow on the wire: the media type, and pyarrow, which is loaded when it is first needed.

A message or a receipt is a row. A column has the name of the JSON field; a field that a message does not have
is null in its row.
"""

import importlib
from typing import Any

MEDIA_TYPE = "application/vnd.apache.arrow.stream"
EXTRA = "timerwheel[arrow]"
REMEDY = f"needs pyarrow, which is not installed here; install it with: pip install '{EXTRA}'"

_PARTS = ("pyarrow.compute", "pyarrow.ipc")


def stream_of(data: Any) -> bytes:  # noqa: ANN401 - of pyarrow
    """Return the stream of a Table, a RecordBatch or a RecordBatchReader."""
    pa = load()
    batches = data.to_batches() if isinstance(data, pa.Table) else data
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, data.schema) as writer:
        for batch in [batches] if isinstance(batches, pa.RecordBatch) else batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def load() -> Any:  # noqa: ANN401 - a module that need not be installed
    """Return pyarrow; ImportError if it is not installed. The first call takes about half a second."""
    try:
        for part in _PARTS:
            importlib.import_module(part)
        pa = importlib.import_module("pyarrow")
    except ImportError as error:
        raise ImportError(f"Apache Arrow {REMEDY}") from error
    pa.array([None])  # the first array imports pandas, if that is installed
    return pa
