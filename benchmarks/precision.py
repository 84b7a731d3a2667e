"""What PyTorch itself loses in each precision class, against the bounds that candidates are held to.

    python -P benchmarks/precision.py [--name precision-h100]

Needs torch and nothing else; rows of class ``tf32`` need a CUDA device. For each operation and class: the RMS error of
eager PyTorch over the output's RMS, the RMS error that the class allows there, and the RMS error when operands are
rounded to the next coarser type first (TF32 for ``strict``, bfloat16 for ``tf32`` and ``float16``, float8 for
``bfloat16``), with what the bounds say of it. A class is sound where eager passes with room and the coarser operands
do not.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

from runner import write_results

from artifacts.measurement import Precision
from optimizer.evaluation.sandbox.torch_state import set_precision
from optimizer.evaluation.verify.oracle import doubled, in_fp64
from optimizer.evaluation.verify.tolerance import mismatch, tolerance_for

DTYPES = {Precision.FLOAT16: torch.float16, Precision.BFLOAT16: torch.bfloat16}
SEED = 5


class Product(nn.Module):
    """A matrix product of two inputs."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        return a @ b


class Attention(nn.Module):
    """Softmax attention of three inputs."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attend."""
        return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), dim=-1) @ v


def chain(layers: int, width: int) -> nn.Module:
    """Linear layers with ReLU between them."""
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*parts[:-1])


def residual(layers: int, channels: int) -> nn.Module:
    """Convolutions with batch norm, as in level 3 of KernelBench."""
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
    return nn.Sequential(*parts)


Draw = Callable[..., torch.Tensor]
OPERATIONS: dict[str, tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...]]] = {
    "product 256": (Product, ((256, 256), (256, 256))),
    "product, inner 8192": (Product, ((128, 8192), (8192, 128))),
    "batched product": (Product, ((16, 128, 64), (16, 64, 128))),
    "attention": (Attention, ((4, 256, 64),) * 3),
    "linear": (lambda: nn.Linear(1024, 512), ((128, 1024),)),
    "4 linear layers": (lambda: chain(4, 512), ((128, 512),)),
    "convolution 3x3": (lambda: nn.Conv2d(32, 64, 3), ((4, 32, 32, 32),)),
    "convolution 1x1": (lambda: nn.Conv2d(128, 64, 1), ((4, 128, 28, 28),)),
    "depthwise convolution": (lambda: nn.Conv2d(64, 64, 3, groups=64), ((4, 64, 32, 32),)),
    "convolution 3d": (lambda: nn.Conv3d(8, 16, 3), ((2, 8, 12, 16, 16),)),
    "transposed convolution": (lambda: nn.ConvTranspose2d(32, 16, 3, stride=2), ((4, 32, 16, 16),)),
    "8 convolutions with norm": (lambda: residual(8, 32), ((4, 32, 24, 24),)),
    "softmax": (lambda: nn.Softmax(-1), ((256, 4096),)),
    "layer norm": (lambda: nn.LayerNorm(1024), ((256, 1024),)),
}


def coarser(precision: Precision) -> Callable[[torch.Tensor], torch.Tensor]:
    """Rounds a tensor to the next coarser type and back."""
    if precision is Precision.STRICT:
        return as_tf32
    through = torch.float8_e4m3fn if precision is Precision.BFLOAT16 else torch.bfloat16
    return lambda tensor: tensor.to(through).to(tensor.dtype)


def as_tf32(tensor: torch.Tensor) -> torch.Tensor:
    """Rounded to the nearest number with 10 bits of mantissa."""
    bits = tensor.contiguous().view(torch.int32)
    return ((bits + 0x0FFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


def row(name: str, drawn: str, precision: Precision, device: str) -> dict[str, Any]:
    """One operation in one class."""
    make, shapes = OPERATIONS[name]
    torch.manual_seed(SEED)
    draw: Draw = {"normal": torch.randn, "uniform": torch.rand}[drawn]
    dtype = DTYPES.get(precision, torch.float32)
    model = make().to(device, dtype)
    inputs = [draw(shape).to(device, dtype) for shape in shapes]
    set_precision(tf32=precision is Precision.TF32)
    with torch.no_grad():
        native, exact = model(*inputs), in_fp64(model)(*doubled(inputs))
        for parameter in model.parameters():
            parameter.copy_(coarser(precision)(parameter))
        rounded = model(*map(coarser(precision), inputs))
    tolerance = tolerance_for(exact, native, tf32=precision is Precision.TF32)
    scale = rms(exact)
    return {
        "operation": name,
        "inputs": drawn,
        "class": precision.value,
        "eager_rms": rms(native.double() - exact) / scale,
        "allowed_rms": None if tolerance is None else tolerance.rms / scale,
        "eager_passes": tolerance is not None and not mismatch(native, exact, tolerance),
        "coarser_rms": rms(rounded.double() - exact) / scale,
        "coarser_refused": tolerance is not None and bool(mismatch(rounded, exact, tolerance)),
    }


def rms(tensor: torch.Tensor) -> float:
    """Root of the mean square."""
    return float(tensor.double().square().mean().sqrt())


def main() -> None:
    """Print the table and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", help="of the result file, without ending")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    classes = [each for each in Precision if device == "cuda" or each is not Precision.TF32]
    rows = [
        row(name, drawn, each, device) for each in classes for name in OPERATIONS for drawn in ("normal", "uniform")
    ]
    print(f"{'class':9} {'operation':26} {'inputs':8} {'eager':>9} {'allowed':>9} {'coarser':>9}  coarser is")
    for each in rows:
        allowed = "-" if each["allowed_rms"] is None else f"{each['allowed_rms']:9.1e}"
        verdict = "refused" if each["coarser_refused"] else "accepted"
        wrong = "" if each["eager_passes"] else "  EAGER FAILS"
        print(
            f"{each['class']:9} {each['operation']:26} {each['inputs']:8} {each['eager_rms']:9.1e} {allowed:>9} "
            f"{each['coarser_rms']:9.1e}  {verdict}{wrong}"
        )
    if options.name:
        write_results(options.name, {"device": device, "rows": rows})


if __name__ == "__main__":
    main()
