"""Reading Parquet files leaves nothing behind that could outlive the interpreter."""

import io
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from artifacts.memory.schemas import table_of

TABLE = pa.table({"a": [1, 2, 3], "b": ["x", None, "z"]}).replace_schema_metadata({"k": "v"})
THREADS = """
import os, pathlib
from artifacts.memory.schemas import table_of
def threads():
    names = [file.read_text().strip() for file in pathlib.Path("/proc/self/task").glob("*/comm")]
    return sum(name != "jemalloc_bg_thd" for name in names)
before = threads()
table_of(pathlib.Path(os.environ["FILE"]).read_bytes())
print(before, threads())
"""


def test_what_was_written_is_read() -> None:
    sink = io.BytesIO()
    pq.write_table(TABLE, sink)
    found = table_of(sink.getvalue())
    assert found.equals(TABLE)
    assert found.schema.metadata == TABLE.schema.metadata


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
def test_reading_starts_no_thread(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "table.parquet")
    environment = {"FILE": str(tmp_path / "table.parquet"), "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        [sys.executable, "-c", THREADS], env=environment, capture_output=True, text=True, check=True, timeout=300
    )
    before, after = done.stdout.split()
    assert before == after
