"""Room for arms: the ways to choose the next step, all behind one interface, compared under one budget."""

from optimizer.arms.protocol import (
    EXPERIENCE,
    FIXES,
    KERNEL,
    Arm,
    ArmContext,
    Choice,
    Intent,
    Member,
    Said,
    StrategyUse,
)
from optimizer.arms.registry import ARMS, make_arm

__all__ = [
    "ARMS",
    "EXPERIENCE",
    "FIXES",
    "KERNEL",
    "Arm",
    "ArmContext",
    "Choice",
    "Intent",
    "Member",
    "Said",
    "StrategyUse",
    "make_arm",
]
