"""What engines that serve models share, whichever they are; none is imported here.

intake          from the stream of stored tensors to this rank's part of each weight
stored_layers   which tensors of a checkpoint make up a layer of an engine's
expert_sources  the same, of experts
packed          the weights of a fused linear layer, and their products
"""
