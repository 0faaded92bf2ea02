"""LoRA of peft on layers with packed weights: import this, then use `get_peft_model` as ever.

    import blockscale.integrations.peft
    model = get_peft_model(model, LoraConfig(target_modules="all-linear"))

The order of imports does not matter, nor whether the model was made before. The packed weights stay
frozen and keep their bytes; adapters, their files and the optimiser are peft's and torch's.

`registration` is how peft comes to know `blockscale.nn.Linear`, and forgets it; `layer` is what it
puts around one.
"""

from blockscale.integrations.peft.layer import LoraLinear
from blockscale.integrations.peft.registration import register, unregister

register()

__all__ = ["LoraLinear", "register", "unregister"]
