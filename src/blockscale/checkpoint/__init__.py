"""Checkpoints on disk: the dialects that the ecosystem writes, and ours."""

from blockscale.checkpoint.checkpoint import Checkpoint
from blockscale.checkpoint.compare import relative_error
from blockscale.checkpoint.convert import run_plan
from blockscale.checkpoint.dialects import READABLE, WRITABLE
from blockscale.checkpoint.importance import (
    ImportanceSource,
    check_importance,
    importance_of,
    read_importance,
    write_importance,
)
from blockscale.checkpoint.load import load
from blockscale.checkpoint.load_into import load_into
from blockscale.checkpoint.orientation import as_weights
from blockscale.checkpoint.plan import Plan, Settings, parse_rules, plan_conversion
from blockscale.checkpoint.save import SHARD_SIZE, save
from blockscale.checkpoint.select import kept_by_reason
from blockscale.checkpoint.shards import file_digest

__all__ = [
    "READABLE",
    "SHARD_SIZE",
    "WRITABLE",
    "Checkpoint",
    "ImportanceSource",
    "Plan",
    "Settings",
    "as_weights",
    "check_importance",
    "file_digest",
    "importance_of",
    "kept_by_reason",
    "load",
    "load_into",
    "parse_rules",
    "plan_conversion",
    "read_importance",
    "relative_error",
    "run_plan",
    "save",
    "write_importance",
]
