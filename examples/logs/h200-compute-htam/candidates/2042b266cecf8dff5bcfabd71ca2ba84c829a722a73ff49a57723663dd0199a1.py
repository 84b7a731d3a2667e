"""Causal convolution of each channel with its own long filter."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, CHANNELS, LENGTH, TAPS = 32, 128, 2048, 128


class Model(nn.Module):
    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        self.filters = nn.Parameter(torch.randn(channels, 1, taps) / taps**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padded = F.pad(x, (self.filters.shape[2] - 1, 0))
        return F.conv1d(padded, self.filters, groups=self.filters.shape[0])


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, LENGTH)]


def get_init_inputs():
    return [CHANNELS, TAPS]
