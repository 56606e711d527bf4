"""Comparison of PyTorch programs: with FP32, per assignment, value by value, and what plain half does."""
