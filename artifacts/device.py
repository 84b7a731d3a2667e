"""What a device can do at most: the ceilings that physical limits and device discounts rest on."""

from __future__ import annotations

import re
from dataclasses import dataclass

UNKNOWN = "unknown"
"""Architecture of a device that nobody knows; two of them have nothing in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """Peak rates of one device, from its vendor's data sheet.

    Attributes:
        name: short name in lower case, e.g. ``a800``; the cleaned input when the device is unknown.
        arch: ``sm_80``, ``cpu``, ... or ``unknown``.
        dram_gb_s: peak memory bandwidth in 10^9 bytes a second.
        fp32_tflops: peak fp32 rate without tensor cores, in 10^12 operations a second.
        tf32_tflops, fp16_tflops: dense tensor-core rates; None where the device has none.
        l2_mb: last-level cache in 2^20 bytes.
    """

    name: str
    arch: str
    dram_gb_s: float | None = None
    fp32_tflops: float | None = None
    tf32_tflops: float | None = None
    fp16_tflops: float | None = None
    l2_mb: float | None = None

    @property
    def known(self) -> bool:
        """Whether the ceilings are known."""
        return self.dram_gb_s is not None


def device_spec(name: str) -> DeviceSpec:
    """Return the ceilings of the device that ``name`` means, in whatever words a log uses.

    "NVIDIA A800-SXM4-80GB", "a800" and "A800 (80 GB)" are one device. A name that no rule knows
    gives architecture ``unknown`` and no ceilings, never an error.
    """
    text = " ".join(re.sub(r"[^a-z0-9]+", " ", name.lower()).split())
    for pattern, spec in _RULES:
        if pattern.search(text):
            return spec
    return DeviceSpec(name=text or UNKNOWN, arch=UNKNOWN)


def _row(
    pattern: str,
    name: str,
    arch: str,
    dram: float,
    fp32: float,
    tf32: float | None,
    fp16: float | None,
    l2: float,
) -> tuple[re.Pattern[str], DeviceSpec]:
    spec = DeviceSpec(
        name=name, arch=arch, dram_gb_s=dram, fp32_tflops=fp32, tf32_tflops=tf32, fp16_tflops=fp16, l2_mb=l2
    )
    return re.compile(pattern), spec


# The first rule that matches wins: more specific names come first.
_RULES = (
    _row(r"\bgb200\b", "gb200", "sm_100", 8000, 80, 1250, 2500, 126),
    _row(r"\bb200\b", "b200", "sm_100", 8000, 75, 1125, 2250, 126),
    _row(r"\bb100\b", "b100", "sm_100", 8000, 60, 875, 1750, 126),
    _row(r"\bgh200\b", "gh200", "sm_90", 4900, 67, 495, 990, 50),
    _row(r"\bh200\b", "h200", "sm_90", 4800, 67, 495, 990, 50),
    _row(r"\bh100\b.*\bpcie\b|\bpcie\b.*\bh100\b", "h100-pcie", "sm_90", 2039, 51, 378, 756, 50),
    _row(r"\bh100\b", "h100", "sm_90", 3352, 67, 495, 990, 50),
    _row(r"\bh800\b", "h800", "sm_90", 3352, 67, 495, 990, 50),
    _row(r"\bh20\b", "h20", "sm_90", 4000, 44, 74, 148, 60),
    _row(r"\ba100\b.*\b40 ?gb\b", "a100-40gb", "sm_80", 1555, 19.5, 156, 312, 40),
    _row(r"\ba100\b", "a100", "sm_80", 2039, 19.5, 156, 312, 40),
    _row(r"\ba800\b", "a800", "sm_80", 2039, 19.5, 156, 312, 40),
    _row(r"\ba30\b", "a30", "sm_80", 933, 10.3, 82, 165, 24),
    _row(r"\ba40\b", "a40", "sm_86", 696, 37.4, 75, 150, 6),
    _row(r"\ba10g?\b", "a10", "sm_86", 600, 31.2, 62, 125, 6),
    _row(r"\b(rtx )?a6000\b", "a6000", "sm_86", 768, 38.7, 77, 155, 6),
    _row(r"\bl40s\b", "l40s", "sm_89", 864, 91.6, 183, 366, 96),
    _row(r"\bl40\b", "l40", "sm_89", 864, 90.5, 90, 181, 96),
    _row(r"\bl4\b", "l4", "sm_89", 300, 30.3, 60, 121, 48),
    _row(r"\b(tesla )?v100\b", "v100", "sm_70", 900, 15.7, None, 125, 6),
    _row(r"\b(tesla )?t4\b", "t4", "sm_75", 320, 8.1, None, 65, 4),
    _row(r"\bp100\b", "p100", "sm_60", 732, 9.3, None, None, 4),
    _row(r"\b5090\b", "rtx-5090", "sm_120", 1792, 104.8, 105, 210, 96),
    _row(r"\b4090\b", "rtx-4090", "sm_89", 1008, 82.6, 83, 165, 72),
    _row(r"\b3090 ti\b", "rtx-3090-ti", "sm_86", 1008, 40, 40, 80, 6),
    _row(r"\b3090\b", "rtx-3090", "sm_86", 936, 35.6, 36, 71, 6),
    (re.compile(r"\bcpu\b|\bxeon\b|\bepyc\b|\bx86\b|\bx86 64\b|\baarch64\b"), DeviceSpec(name="cpu", arch="cpu")),
)
