"""Which machine code a GPU runs: what NVRTC is asked for, from what torch reports.

Within a major version, code for an older minor runs on a newer one, except code for "sm_90a" and
its like, which has instructions of that one chip and runs on nothing else.
"""

from __future__ import annotations

import re

# Ampere (A100, RTX 30), Ada, Hopper, Blackwell (B200, B300, RTX 50, GB10).
TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a", "sm_121a")
OLDEST = (8, 0)  # mma with bfloat16, cp.async


def capability(target: str) -> tuple[int, int]:
    """ "sm_90" or "sm_90a" -> (9, 0)."""
    match = re.fullmatch(r"sm_(\d+)(\d)[af]?", target)
    if match is None:
        raise ValueError(f"target {target!r}: use one like sm_80, sm_90 or sm_120a")
    return int(match[1]), int(match[2])


def arch_of(target: str) -> str:
    """What is compiled for a target: with the chip's own instructions where this chip is known.

    A newer minor version gets the plain code of the nearest older one, which it can run; a major
    version that is unknown gets its own name, which NVRTC may know.
    """
    major, minor = capability(target)
    named = f"sm_{major}{minor}" + ("a" if major >= 9 else "")
    if named in TARGETS:
        return named
    older = [each for each in map(capability, TARGETS) if each[0] == major and each[1] < minor]
    return f"sm_{major}{max(older)[1]}" if older else named
