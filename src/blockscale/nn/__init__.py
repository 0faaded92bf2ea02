"""Modules with quantised weights."""

from blockscale.nn.experts import Experts
from blockscale.nn.linear import Linear

__all__ = ["Experts", "Linear"]
