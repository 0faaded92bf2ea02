"""What several files of tests need on the disk."""

import pytest

from checkpoint.models import llama, write_model


@pytest.fixture
def source(tmp_path):
    """A checkpoint that is not quantised."""
    return write_model(tmp_path / "source", llama(), shards=3)
