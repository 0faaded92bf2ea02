"""`blockscale doctor`: versions, devices, and which kernels are usable on each."""

from __future__ import annotations

from blockscale.cli.output import Output


def doctor(out: Output) -> None:
    """Report versions, devices, usable kernels and environment variables."""
    from blockscale.cli.machine import examine, shown

    found = examine()
    out.report(found, *shown(found))
