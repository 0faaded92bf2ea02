"""Modules with quantised weights, and `quantize_`, which puts them into a model."""

from blockscale.nn.experts import Experts
from blockscale.nn.importance import measure_importance
from blockscale.nn.linear import Linear
from blockscale.nn.quantize import quantize_
from blockscale.nn.report import LayerReport, Report

__all__ = ["Experts", "LayerReport", "Linear", "Report", "measure_importance", "quantize_"]
