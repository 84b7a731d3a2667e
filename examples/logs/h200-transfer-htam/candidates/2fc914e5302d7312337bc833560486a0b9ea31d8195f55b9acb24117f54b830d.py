"""Softmax along the columns of each matrix of a batch, scaled by a weight for each column."""

import torch
from torch import nn

BATCH, ROWS, COLUMNS = 16, 1024, 512


class Model(nn.Module):
    def __init__(self, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(columns) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=1) * self.weight


def get_inputs():
    return [torch.randn(BATCH, ROWS, COLUMNS)]


def get_init_inputs():
    return [COLUMNS]
