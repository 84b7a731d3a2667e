"""Mean over a window that moves along a signal."""

import torch
from torch import nn

BATCH, CHANNELS, LENGTH, WINDOW = 8, 64, 8192, 31


class Model(nn.Module):
    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.avg_pool1d(x, self.window, stride=1)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, LENGTH)]


def get_init_inputs():
    return [WINDOW]
