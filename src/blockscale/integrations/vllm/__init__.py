"""vLLM serves packed weights: nothing to import, `pip install blockscale` beside vLLM is enough.

    vllm serve CHECKPOINT

vLLM finds `register` by its entry point (`vllm.general_plugins`) and calls it in every process.
From then on it knows the quantisation method "blockscale", which claims this library's own files
everywhere, and checkpoints of ModelOpt, compressed-tensors and gpt-oss on CPUs, where vLLM refuses
them; on GPUs these are claimed by `--quantization blockscale`, or by BLOCKSCALE_VLLM=1.

    registration   how vLLM comes to know of this library
    claims         which checkpoints are served by it
    config         the quantisation method of one model: which of its layers are packed
    loader         no parameter is left as its memory was
    served_model   the checkpoint that a process loads, and the stream that vLLM reads it in
    linear, head, experts   the three kinds of layers
    startup        what is compiled, and said, before the first request

What vLLM has no part in is in `blockscale.integrations.engines`, and tested without it.
"""

from blockscale.integrations.vllm.registration import register

__all__ = ["register"]
