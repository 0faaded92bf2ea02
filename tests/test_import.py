"""Importing the library is free of side effects, in a fresh process."""

import subprocess
import sys

import hanging


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True, timeout=hanging.SECONDS,
    ).stdout  # fmt: skip


def test_nothing_heavy_is_imported_and_no_cuda_initialised():
    out = run(
        "import sys, torch\n"
        "before = set(sys.modules)\n"
        "import blockscale, blockscale.compat\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "heavy = {'transformers', 'triton', 'matplotlib', 'typer', 'rich', 'cuda', 'cupy'}\n"
        "print(sorted(new & heavy), torch.cuda.is_initialized())\n"
        "w = blockscale.quantize(torch.randn(4, 64), blockscale.NVFP4)\n"
        "blockscale.matmul(torch.randn(2, 64), w.prepare()), w.dequantize()\n"
        "print('torch._dynamo' in sys.modules)  # which takes as long to import as torch\n"
    )
    assert out.split() == ["[]", "False", "False"]


def test_formats_need_no_torch():
    """The package imports torch; its formats alone would not."""
    out = run(
        "import sys, types, pathlib, importlib.util\n"
        "spec = importlib.util.find_spec('blockscale')\n"
        "root = pathlib.Path(spec.submodule_search_locations[0])\n"
        "package = types.ModuleType('blockscale')\n"
        "package.__path__ = [str(root)]\n"
        "sys.modules['blockscale'] = package\n"
        "import blockscale.formats\n"
        "print('torch' in sys.modules, len(blockscale.formats.CATALOGUE))\n"
    )
    assert out.split() == ["False", "12"]


def test_public_names():
    import blockscale as bs

    for name in bs.__all__:
        assert hasattr(bs, name)
    assert {"NVFP4", "quantize", "matmul", "QTensor", "explain"} <= set(bs.__all__)


def test_compat_names():
    from blockscale import compat

    wanted = [
        "fp4_quantize",
        "fp4_cached_linear",
        "FP4WeightCache",
        "fp4_matmul",
        "fp4_linear",
        "quantize_kbit",
        "dequantize_kbit",
        "create_normal_float_codebook",
        "repack_for_gemm",
        "kbit_gemm",
        "kbit_grouped_gemm",
        "LinearNbit",
        "tile_atom_to_shape_SF",
        "BlockScaledBasicChunk",
        "OperandMajorMode",
    ]
    assert set(wanted) == set(compat.__all__)
    for name in wanted:
        assert hasattr(compat, name)
