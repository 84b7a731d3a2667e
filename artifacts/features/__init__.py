"""What an expert sees in a kernel source: named code features for CUDA, C++, Triton and torch."""

from artifacts.features.extract import code_features, detect_language
from artifacts.features.table import FEATURES, CodeFeatures

__all__ = ["FEATURES", "CodeFeatures", "code_features", "detect_language"]
