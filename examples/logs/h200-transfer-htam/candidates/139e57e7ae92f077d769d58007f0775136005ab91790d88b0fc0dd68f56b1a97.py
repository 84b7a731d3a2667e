"""Attention of each position to itself and the 255 before it."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, HEADS, LENGTH, WIDTH, WINDOW = 2, 8, 2048, 64, 256


class Model(nn.Module):
    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        place = torch.arange(q.shape[2], device=q.device)
        back = place[:, None] - place[None, :]
        seen = (back >= 0) & (back < self.window)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def get_inputs():
    return [torch.randn(BATCH, HEADS, LENGTH, WIDTH) for _ in range(3)]


def get_init_inputs():
    return [WINDOW]
