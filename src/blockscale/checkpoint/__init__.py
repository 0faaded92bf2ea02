"""Checkpoints on disk: the dialects that the ecosystem writes, and ours."""

from blockscale.checkpoint.checkpoint import Checkpoint
from blockscale.checkpoint.compare import relative_error
from blockscale.checkpoint.convert import run_plan
from blockscale.checkpoint.dialects import READABLE, WRITABLE
from blockscale.checkpoint.load import load
from blockscale.checkpoint.load_into import load_into
from blockscale.checkpoint.plan import Plan, Settings, parse_rules, plan_conversion
from blockscale.checkpoint.save import SHARD_SIZE, save

__all__ = [
    "READABLE",
    "SHARD_SIZE",
    "WRITABLE",
    "Checkpoint",
    "Plan",
    "Settings",
    "load",
    "load_into",
    "parse_rules",
    "plan_conversion",
    "relative_error",
    "run_plan",
    "save",
]
