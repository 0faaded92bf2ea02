"""Configs of the streaming CUDA kernel, one of each kind: a test of all would compile hundreds."""


def one_of_each_kind(configs, most=6):
    """The first by rank of each way to multiply, tile of x, cluster and place of the table."""
    kinds = {}
    for config in configs:
        kind = config.wgmma, config.tile_m, config.splits > 1, config.shared_table
        kinds.setdefault(kind, config)
    return list(kinds.values())[:most]
