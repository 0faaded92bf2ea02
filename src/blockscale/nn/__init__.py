"""Modules with quantised weights."""

from blockscale.nn.linear import Linear

__all__ = ["Linear"]
