"""A linear layer with a correction of low rank."""

import torch
from torch import nn

ROWS, WIDTH, RANK = 4096, 1024, 32


class Model(nn.Module):
    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.full = nn.Linear(width, width)
        self.narrow = nn.Linear(width, rank, bias=False)
        self.wide = nn.Linear(rank, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.full(x) + self.wide(self.narrow(x))


def get_inputs():
    return [torch.randn(ROWS, WIDTH)]


def get_init_inputs():
    return [WIDTH, RANK]
