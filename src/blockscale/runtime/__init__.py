"""The machine: devices, the environment, what the hardware can do at best."""

from blockscale.runtime import native, proven, tuned
from blockscale.runtime.bounded_json import Limits, open_regular, parse_json, read_json
from blockscale.runtime.ceilings import Ceilings, ceilings, published_ceilings
from blockscale.runtime.determinism import ask_deterministic, deterministic, is_deterministic
from blockscale.runtime.device import Device
from blockscale.runtime.environment import (
    CHECKS,
    VARIABLES,
    checks_enabled,
    proving_enabled,
    serving_everywhere,
    serving_x_format,
    tuned_enabled,
)
from blockscale.runtime.gpus import GPUS, gpu
from blockscale.runtime.identity import device_names
from blockscale.runtime.live import device_of
from blockscale.runtime.memory import available_memory
from blockscale.runtime.native_library import Native, load_native
from blockscale.runtime.replacing import is_unfinished, replacing, sync_folder
from blockscale.runtime.replay import load_replay
from blockscale.runtime.shared_threads import usable_threads
from blockscale.runtime.target import (
    describe_device,
    devices,
    emulates_bfloat16,
    resolve_device,
    target_of,
)
from blockscale.runtime.triton_refusal import triton_refusal

__all__ = [
    "CHECKS",
    "GPUS",
    "VARIABLES",
    "Ceilings",
    "Device",
    "Limits",
    "Native",
    "ask_deterministic",
    "available_memory",
    "ceilings",
    "checks_enabled",
    "describe_device",
    "deterministic",
    "device_names",
    "device_of",
    "devices",
    "emulates_bfloat16",
    "gpu",
    "is_deterministic",
    "is_unfinished",
    "load_native",
    "load_replay",
    "native",
    "open_regular",
    "parse_json",
    "proven",
    "proving_enabled",
    "published_ceilings",
    "read_json",
    "replacing",
    "resolve_device",
    "serving_everywhere",
    "serving_x_format",
    "sync_folder",
    "target_of",
    "triton_refusal",
    "tuned",
    "tuned_enabled",
    "usable_threads",
]
