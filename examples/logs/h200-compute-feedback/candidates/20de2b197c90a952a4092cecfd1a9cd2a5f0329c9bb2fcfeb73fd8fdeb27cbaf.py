"""Largest values of each row, in descending order."""

import torch
from torch import nn

ROWS, COLUMNS, KEPT = 4096, 4096, 64


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.topk(x, KEPT, dim=1).values


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return []
