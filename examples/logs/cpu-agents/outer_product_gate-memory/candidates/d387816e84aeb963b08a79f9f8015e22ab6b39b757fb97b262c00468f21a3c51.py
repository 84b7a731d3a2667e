"""A matrix gated by the sigmoid of an outer product."""

import torch
from torch import nn

ROWS, WIDTH = 2048, 2048


class Model(nn.Module):
    def forward(self, x: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(torch.outer(left, right))


def get_inputs():
    return [torch.randn(ROWS, WIDTH), torch.randn(ROWS), torch.randn(WIDTH)]


def get_init_inputs():
    return []
