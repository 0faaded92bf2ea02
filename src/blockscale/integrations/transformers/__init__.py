"""Models of transformers with packed weights: import this, then use `from_pretrained` as ever.

    import blockscale.integrations.transformers
    model = AutoModelForCausalLM.from_pretrained(path)

Checkpoints of ModelOpt (NVFP4, MXFP8), compressed-tensors (NVFP4, MXFP4, MXFP6, MXFP8), gpt-oss
(MXFP4) and this library keep their bytes and run its kernels. Any other model is quantised while it
is loaded, with `quantization_config=BlockscaleConfig("nvfp4")`. `save_pretrained` writes the
blockscale dialect.

`registration` is how transformers comes to know of all this, and forgets it; what it then calls is
in `blockscale.models.pretrained`.
"""

from blockscale.integrations.transformers.registration import register, unregister
from blockscale.models.pretrained.config import BlockscaleConfig
from blockscale.models.pretrained.quantizer import BlockscaleQuantizer

register()

__all__ = ["BlockscaleConfig", "BlockscaleQuantizer", "register", "unregister"]
