"""Linear layer, then log-sum-exp over its outputs."""

import torch
from torch import nn

ROWS, INNER, WIDTH = 4096, 512, 4096


class Model(nn.Module):
    def __init__(self, inner: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(self.linear(x), dim=1)


def get_inputs():
    return [torch.randn(ROWS, INNER)]


def get_init_inputs():
    return [INNER, WIDTH]
