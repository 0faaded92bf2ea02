"""The machine: devices, the environment, what the hardware can do at best."""

from blockscale.runtime.ceilings import Ceilings, ceilings
from blockscale.runtime.environment import VARIABLES, checks_enabled
from blockscale.runtime.target import describe_device, devices, resolve_device, target_of

__all__ = [
    "VARIABLES",
    "Ceilings",
    "ceilings",
    "checks_enabled",
    "describe_device",
    "devices",
    "resolve_device",
    "target_of",
]
