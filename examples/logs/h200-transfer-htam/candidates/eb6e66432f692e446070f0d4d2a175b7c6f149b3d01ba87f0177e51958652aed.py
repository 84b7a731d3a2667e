"""Convolution of one pixel over many channels, then ReLU limited at six."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, CHANNELS, FILTERS, SIDE = 16, 256, 256, 32


class Model(nn.Module):
    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, kernel_size=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu6(self.conv(x))


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs():
    return [CHANNELS, FILTERS]
