"""How much memory a process holds."""

from __future__ import annotations

import os
import re
from pathlib import Path


def resident_bytes(pid: int) -> int:
    """Resident set of a process, shared pages included; 0 when it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def shared_bytes(pid: int) -> int:
    """Part of the resident set that lies in memory files and is shared with other processes; 0 when it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    found = re.search(r"^RssShmem:\s*(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) << 10 if found else 0
