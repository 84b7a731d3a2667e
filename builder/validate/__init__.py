"""Validate a memory: held-out replay at recorded choices against baselines, with intervals over tasks."""
