"""Tables from the bytes of Parquet files, read on the thread that asks."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq


def table_of(data: bytes) -> pa.Table:
    """The table in a Parquet file.

    ``pyarrow.parquet.read_table`` reads ahead on threads of its own, which hold on to ``data``. Arrow knows that one
    that lets go of it while the interpreter ends aborts the process (apache/arrow#34314, "terminate called without an
    active exception"). One command of about a hundred ended with these words after its work was done; that this was
    the cause is probable, it could not be made to happen again. One thread is no slower here.

    Raises:
        pyarrow.ArrowException: the bytes are no Parquet file.
    """
    return pq.ParquetFile(pa.BufferReader(data), pre_buffer=False).read(use_threads=False)
