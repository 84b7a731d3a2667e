"""Convolution over images with a 3 by 3 window."""

import torch
from torch import nn

BATCH, CHANNELS, FILTERS, SIDE = 16, 64, 128, 56


class Model(nn.Module):
    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, kernel_size=3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs():
    return [CHANNELS, FILTERS]
