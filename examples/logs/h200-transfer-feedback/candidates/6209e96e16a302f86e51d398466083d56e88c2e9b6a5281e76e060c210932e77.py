"""Groups of features, each with a linear layer of its own, then ReLU."""

import torch
from torch import nn

ROWS, GROUPS, WIDTH = 4096, 16, 128


class Model(nn.Module):
    def __init__(self, groups: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(groups, width, width) / width**0.5)
        self.bias = nn.Parameter(torch.randn(groups, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.einsum("rgi,gio->rgo", x, self.weight) + self.bias)


def get_inputs():
    return [torch.randn(ROWS, GROUPS, WIDTH)]


def get_init_inputs():
    return [GROUPS, WIDTH]
