"""Convolution over volumes."""

import torch
from torch import nn

BATCH, CHANNELS, FILTERS, DEPTH, SIDE = 4, 32, 64, 16, 32


class Model(nn.Module):
    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(channels, filters, kernel_size=3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, DEPTH, SIDE, SIDE)]


def get_init_inputs():
    return [CHANNELS, FILTERS]
