"""Mean cross-entropy of logits against class indices."""

import torch
from torch import nn

TOKENS, CLASSES = 1024, 4096


class Model(nn.Module):
    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits, target)


def get_inputs():
    return [torch.randn(TOKENS, CLASSES), torch.randint(0, CLASSES, (TOKENS,))]


def get_init_inputs():
    return []
