"""One tiny model for all tests of a session; it is only read."""

import pytest

from models.tiny import write_tiny


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    pytest.importorskip("transformers")
    return write_tiny(tmp_path_factory.mktemp("tiny") / "model")
