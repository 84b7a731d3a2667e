"""Sum over the middle dimension of a three-dimensional tensor."""

import torch
from torch import nn

BATCH, MIDDLE, INNER = 16, 512, 512


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sum(x, dim=1)


def get_inputs():
    return [torch.randn(BATCH, MIDDLE, INNER)]


def get_init_inputs():
    return []
