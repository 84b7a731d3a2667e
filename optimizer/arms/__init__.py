"""Room for arms: the ways to choose the next step, all behind one interface, compared under one budget."""

from optimizer.arms.protocol import Arm, ArmContext, Choice, Intent, Member, Said, StrategyUse
from optimizer.arms.registry import ARMS, make_arm

__all__ = ["ARMS", "Arm", "ArmContext", "Choice", "Intent", "Member", "Said", "StrategyUse", "make_arm"]
