"""GPU tests are not collected where there is no GPU: what they import must be there even so."""

import importlib.util

import pytest

from conftest import GPU_TESTS


@pytest.mark.parametrize("path", sorted(GPU_TESTS.glob("test_*.py")), ids=lambda path: path.stem)
def test_a_file_can_be_imported(path):
    spec = importlib.util.spec_from_file_location(f"imported_{path.stem}", path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
