"""Rotary position embedding applied to queries (half-split form)."""

import torch
from torch import nn

BATCH, HEADS, TOKENS, WIDTH = 2, 8, 512, 64


class Model(nn.Module):
    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        low, high = x.chunk(2, dim=-1)
        rotated = torch.cat((-high, low), dim=-1)
        return x * cosine + rotated * sine


def get_inputs():
    angle = torch.randn(TOKENS, WIDTH)
    return [torch.randn(BATCH, HEADS, TOKENS, WIDTH), torch.cos(angle), torch.sin(angle)]


def get_init_inputs():
    return []
