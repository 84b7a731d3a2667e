"""Product of two square matrices in half precision."""

import torch
from torch import nn

SIDE = 4096


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.matmul(a, b)


def get_inputs():
    return [torch.randn(SIDE, SIDE).half(), torch.randn(SIDE, SIDE).half()]


def get_init_inputs():
    return []
