"""Changes to files that were good."""

import json

from safetensors.torch import load_file, save_file


def rewrite_json(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def rewrite_tensors(path, change):
    tensors = load_file(path)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})
