"""Two linear layers with GELU between them."""

import torch
import torch.nn.functional as F
from torch import nn

ROWS, WIDTH, HIDDEN = 2048, 512, 2048


class Model(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


def get_inputs():
    return [torch.randn(ROWS, WIDTH)]


def get_init_inputs():
    return [WIDTH, HIDDEN]
