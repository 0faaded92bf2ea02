"""How many clusters of CTAs a GPU runs at once."""

from __future__ import annotations

from blockscale.runtime import Device


def cluster_places(device: Device, size: int) -> int:
    """Clusters of so many CTAs that are resident at once, with one CTA to an SM.

    Clusters of two fill every SM; larger ones leave some idle, since a cluster stays inside
    a GPC. An H200 holds 39 clusters of 3, 30 of 4, 15 of 8: this gives as many, or one less.
    """
    return int(device.sms / size * (1 if size <= 2 else 0.89))


def all_at_once(device: Device, clusters: int, size: int, ctas_per_sm: int) -> bool:
    """Whether so many clusters run together: one that must wait doubles the time."""
    return size == 1 or clusters <= ctas_per_sm * cluster_places(device, size)
