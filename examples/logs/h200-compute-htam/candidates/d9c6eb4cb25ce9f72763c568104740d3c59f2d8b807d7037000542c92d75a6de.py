"""First-order linear recurrence along time with a gate for each element."""

import torch
from torch import nn

BATCH, LENGTH, WIDTH = 64, 512, 256


class Model(nn.Module):
    def forward(self, gate: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        keep = torch.sigmoid(gate)
        state = torch.zeros_like(x[:, 0])
        states = []
        for t in range(x.shape[1]):
            state = keep[:, t] * state + (1 - keep[:, t]) * x[:, t]
            states.append(state)
        return torch.stack(states, dim=1)


def get_inputs():
    return [torch.randn(BATCH, LENGTH, WIDTH), torch.randn(BATCH, LENGTH, WIDTH)]


def get_init_inputs():
    return []
