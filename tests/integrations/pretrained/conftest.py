"""What every test of models from disk has."""

import pytest

from integrations.pretrained.tiny import FAMILIES, integration, tiny


@pytest.fixture(autouse=True)
def _registered():
    integration.register()
    yield
    integration.unregister()


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture
def plain(family, tmp_path):
    """A model in full precision, on disk."""
    tiny(family).save_pretrained(tmp_path / "plain")
    return tmp_path / "plain"
