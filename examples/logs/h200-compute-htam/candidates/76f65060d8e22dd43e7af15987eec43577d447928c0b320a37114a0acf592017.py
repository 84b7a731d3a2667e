"""Product of two square matrices in single precision."""

import torch
from torch import nn

SIDE = 2048


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.matmul(a, b)


def get_inputs():
    return [torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)]


def get_init_inputs():
    return []
