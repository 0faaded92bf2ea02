"""Models of transformers with packed weights: import this, then use `from_pretrained` as ever.

    import blockscale.integrations.transformers
    model = AutoModelForCausalLM.from_pretrained(path)

Checkpoints of ModelOpt (NVFP4, MXFP8), compressed-tensors (NVFP4, MXFP4, MXFP6, MXFP8), gpt-oss
(MXFP4) and this library keep their bytes and run its kernels. Any other model is quantised while it
is loaded, with `quantization_config=BlockscaleConfig("nvfp4")`. `save_pretrained` writes the
blockscale dialect.

    config        what a user asks for, and what config.json says
    quantizer     the hooks of transformers that are used
    stored        weights that are quantised in the checkpoint
    on_load       weights that are quantised while they are loaded
    registration  how transformers comes to know of all this, and forgets it
"""

from blockscale.integrations.transformers.config import BlockscaleConfig
from blockscale.integrations.transformers.quantizer import BlockscaleQuantizer
from blockscale.integrations.transformers.registration import register, unregister

register()

__all__ = ["BlockscaleConfig", "BlockscaleQuantizer", "register", "unregister"]
