"""Transposed convolution that doubles the side of an image."""

import torch
from torch import nn

BATCH, CHANNELS, FILTERS, SIDE = 16, 64, 32, 64


class Model(nn.Module):
    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(channels, filters, kernel_size=4, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs():
    return [CHANNELS, FILTERS]
