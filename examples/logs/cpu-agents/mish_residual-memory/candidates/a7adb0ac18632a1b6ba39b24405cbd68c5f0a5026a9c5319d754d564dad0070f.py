"""A residual branch behind the Mish activation."""

import torch
from torch import nn

ROWS, WIDTH = 2048, 2048


class Model(nn.Module):
    def forward(self, x: torch.Tensor, branch: torch.Tensor) -> torch.Tensor:
        return x + torch.nn.functional.mish(branch)


def get_inputs():
    return [torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)]


def get_init_inputs():
    return []
