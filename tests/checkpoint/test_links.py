"""Links in a folder from elsewhere lead nowhere but into the folder, or into its own cache."""

import shutil

import pytest
import torch

import blockscale as bs
from blockscale.checkpoint import Settings, load, plan_conversion, run_plan
from checkpoint.models import bytes_of, llama, write_model


@pytest.fixture
def source(tmp_path):
    torch.manual_seed(1)
    return write_model(tmp_path / "source", llama(1), shards=2)


@pytest.fixture
def private(tmp_path):
    """A file of the user's, beside the folder."""
    path = tmp_path / "id_ed25519"
    path.write_text('{"private": "key"}')
    return path


def quantised(source, target):
    run_plan(plan_conversion(source, Settings(bs.MXFP4)), target)
    return bytes_of(target)


def move_behind_links(folder, blobs):
    """As in Hugging Face's cache: each file becomes a link to a blob."""
    blobs.mkdir(parents=True)
    for number, path in enumerate(sorted(folder.iterdir())):
        blob = blobs / f"{number:064x}"
        path.rename(blob)
        path.symlink_to(blob)


@pytest.mark.parametrize("name", ["README.md", "tokenizer.model", "generation_config.json"])
@pytest.mark.fault(
    "a file of a checkpoint is a link to a private key",
    outcome="quantize copies no such link: ValueError, and nothing is written",
)
def test_links_out_of_the_folder_are_not_copied(source, private, tmp_path, name):
    (source / name).unlink(missing_ok=True)
    (source / name).symlink_to(private)
    with pytest.raises(ValueError, match=rf"{name} is a link to .*id_ed25519, outside of"):
        quantised(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.partial").exists()


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors"]
)
@pytest.mark.fault(
    "config.json, the index or a shard is a link out of the folder",
    outcome="ValueError that names the link and where it leads",
)
def test_links_out_of_the_folder_are_not_read(source, private, name):
    shutil.copy(source / name, private)
    (source / name).unlink()
    (source / name).symlink_to(private)
    with pytest.raises(ValueError, match=rf"{name} is a link to .*id_ed25519, outside of"):
        load(source)


def test_links_that_stay_in_the_folder_are_followed(source, tmp_path):
    plain = quantised(source, tmp_path / "plain")
    (source / "config.json").rename(source / ".config")
    (source / "config.json").symlink_to(".config")
    (source / "tokenizer.json").rename(source / ".tokenizer")
    (source / "tokenizer.json").symlink_to(source / ".tokenizer")
    assert quantised(source, tmp_path / "linked") == plain


def test_a_snapshot_of_a_cache_is_read_and_copied_whole(source, tmp_path):
    plain = quantised(source, tmp_path / "plain")
    repository = tmp_path / "models--someone--small"
    snapshot = repository / "snapshots" / "0123abcd"
    snapshot.parent.mkdir(parents=True)
    source.rename(snapshot)
    move_behind_links(snapshot, repository / "blobs")
    assert quantised(snapshot, tmp_path / "cached") == plain
    assert not any(path.is_symlink() for path in (tmp_path / "cached").iterdir())


@pytest.mark.parametrize("place", ["", "refs", "blobs2"])
@pytest.mark.fault(
    "a folder laid out like a cache has links beyond its blobs",
    outcome="ValueError that names the link",
)
def test_a_cache_opens_its_blobs_alone(source, private, tmp_path, place):
    snapshot = tmp_path / "snapshots" / "0123abcd"
    snapshot.parent.mkdir()
    source.rename(snapshot)
    move_behind_links(snapshot, tmp_path / "blobs")
    (tmp_path / place).mkdir(exist_ok=True)
    leak = tmp_path / place / "key"
    private.rename(leak)
    (tmp_path / "blobs" / "onward").symlink_to(leak)
    (snapshot / "README.md").symlink_to(tmp_path / "blobs" / "onward")
    with pytest.raises(ValueError, match=r"README.md is a link to .*key, outside of"):
        quantised(snapshot, tmp_path / "out")


def test_a_file_that_the_user_names_may_be_a_link(source, tmp_path):
    shard = source / "model-00001-of-00002.safetensors"
    link = tmp_path / "weights.safetensors"
    link.symlink_to(shard)
    assert load(link).keys() == load(shard).keys()
    (tmp_path / "folder").symlink_to(source)
    assert load(tmp_path / "folder").keys() == load(source).keys()


def test_a_link_that_leads_nowhere_is_not_copied(source, tmp_path):
    plain = quantised(source, tmp_path / "plain")
    (source / "notes.txt").symlink_to(source / "gone")
    assert quantised(source, tmp_path / "out") == plain
