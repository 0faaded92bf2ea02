"""Generate with vLLM in a process of its own, several ranks among its children: prints the tokens.

python -m serving.generate FOLDER '{"tensor_parallel_size": 2}'
"""

import json
import sys

from serving.served_models import served


def main() -> None:
    from vllm import LLM

    settings = {
        "dtype": "float32",
        "skip_tokenizer_init": True,
        "max_model_len": 256,
        "max_num_seqs": 4,
        "enforce_eager": True,
    }
    engine = LLM(model=sys.argv[1], **(settings | json.loads(sys.argv[2])))
    print("TOKENS", json.dumps(served(engine)), flush=True)


if __name__ == "__main__":
    main()
