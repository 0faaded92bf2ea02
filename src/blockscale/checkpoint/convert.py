"""Carrying out a plan: tensors are read, converted and written as a stream.

A few workers convert ahead of the one writer, as far as a budget of bytes allows, so memory is
bounded by the largest tensors and not by the model or the size of a shard.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blockscale.checkpoint.checkpoint import Checkpoint
from blockscale.checkpoint.contents import untied
from blockscale.checkpoint.description import DESCRIPTION, without_description
from blockscale.checkpoint.files import CONFIG, INDEX, Files
from blockscale.checkpoint.finite import NonFiniteError, check_finite
from blockscale.checkpoint.importance import (
    ImportanceSource,
    importance_of,
    read_importance,
    write_importance,
)
from blockscale.checkpoint.journal import Journal, finish_renamed, under_construction
from blockscale.checkpoint.plan import Plan, Unit
from blockscale.checkpoint.shards import Shard, index_of, write_json, write_shard
from blockscale.formats import Format
from blockscale.runtime import open_regular, replacing
from blockscale.tensor import QTensor, quantize

Value = QTensor | Tensor
Progress = Callable[[int, int], None]  # bytes of the source and tensors that are done

_WEIGHTS = (
    *(".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".h5", ".msgpack"),
    ".index.json",
)
_REWRITTEN = (CONFIG, "hf_quant_config.json")
_IMPORTANCE = "blockscale-importance"  # while under construction; no suffix that loaders look for
_MOST_WORKERS = 4


def run_plan(
    plan: Plan,
    target: str | Path,
    progress: Progress = lambda size, count: None,
    importance: ImportanceSource | None = None,
) -> None:
    """Write the checkpoint; what an earlier, killed run of the same plan finished is kept."""
    target = Path(target).resolve()
    task = _task(plan, importance)
    _copied(plan.checkpoint.files)  # what may not be copied is found out before the work
    if finish_renamed(target, task):
        return
    with under_construction(target, task) as journal:
        weights = _kept_importance(journal.folder / _IMPORTANCE, importance)
        progress(0, 0)  # now it begins
        try:
            _write_shards(plan, journal, weights, progress)
        except NonFiniteError:
            journal.discard()  # another source or other settings, which could not go on from it
            raise
        (journal.folder / _IMPORTANCE).unlink(missing_ok=True)


def _kept_importance(path: Path, source: ImportanceSource | None) -> Mapping[str, Tensor]:
    """Measured once and kept beside the journal, so that a run that goes on has the same bits."""
    if source is None:
        return {}
    if not path.exists():
        write_importance(path, source.find())
    found = read_importance(path)
    if source.copy is not None:
        write_importance(source.copy, found)
    return found


def _write_shards(
    plan: Plan, journal: Journal, importance: Mapping[str, Tensor], progress: Progress
) -> None:
    with _workers() as pool:
        waiting = []
        for shard in plan.shards:
            if journal.is_finished(shard.file):
                for unit in plan.units_of[shard.file]:
                    progress(unit.nbytes, len(unit.members))
            else:
                waiting.append(shard)
        _check_space(journal.folder, sum(shard.nbytes for shard in waiting))
        try:
            for shard in waiting:
                digest = write_shard(
                    journal.folder, shard, _parts(plan, shard, pool, importance, progress)
                )
                journal.finish(shard.file, digest)
            _write_rest(plan, journal.folder)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise OSError(
                error.errno,
                f"{os.strerror(error.errno)}: finished files are kept in {journal.folder}; make "
                "room and run the same command again",
            ) from error


def _task(plan: Plan, importance: ImportanceSource | None) -> dict[str, Any]:
    """All that the result depends on: settings, version, and the source files as they are now."""
    states = {path.name: path.stat() for path in plan.checkpoint.files.sources if path.exists()}
    return {
        "settings": plan.settings.as_json(),
        "importance": importance and importance.identity,
        "version": version("blockscale"),
        "source": {name: [state.st_size, state.st_mtime_ns] for name, state in states.items()},
    }


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OSError(
            errno.ENOSPC,
            f"{folder} needs {needed / 1e9:.2f} GB more and its disk has {free / 1e9:.2f} GB free",
        )


def _parts(
    plan: Plan,
    shard: Shard,
    pool: ThreadPoolExecutor,
    importance: Mapping[str, Tensor],
    progress: Progress,
) -> Iterator[tuple[str, Tensor]]:
    """What goes into a file, in its order."""
    for unit, values in _converted(plan, plan.units_of[shard.file], pool, importance):
        for stored, value in zip(unit.members, values, strict=True):
            yield from plan.writer.split(stored.name, value, plan.formats).items()
        progress(unit.nbytes, len(unit.members))


def _converted(
    plan: Plan, units: Sequence[Unit], pool: ThreadPoolExecutor, importance: Mapping[str, Tensor]
) -> Iterator[tuple[Unit, list[Value]]]:
    """Units in order, computed ahead by workers while twice the largest fits in flight."""
    budget = 2 * max(unit.nbytes for unit in plan.units)
    waiting: deque[tuple[Unit, Future[list[Value]]]] = deque()
    in_flight = 0
    for unit in units:
        while waiting and in_flight + unit.nbytes > budget:
            done, future = waiting.popleft()
            yield done, future.result()
            in_flight -= done.nbytes
        weights = _importance_of_unit(unit, importance)
        future = pool.submit(convert, plan.checkpoint, unit, plan.settings.scale, weights)
        waiting.append((unit, future))
        in_flight += unit.nbytes
    while waiting:
        done, future = waiting.popleft()
        yield done, future.result()


def _importance_of_unit(unit: Unit, importance: Mapping[str, Tensor]) -> Tensor | None:
    """Projections that are fused read one input: what is known of one holds for all."""
    every = (importance_of(stored.name, importance) for stored in unit.members)
    return next((each for each in every if each is not None), None)


@contextmanager
def _workers() -> Iterator[ThreadPoolExecutor]:
    """A few threads, which divide torch's own threads among themselves.

    Workers of their own overlap what a single tensor leaves idle: reading, writing, short loops.
    """
    threads = torch.get_num_threads()
    workers = min(_MOST_WORKERS, threads)
    torch.set_num_threads(threads // workers)
    pool = ThreadPoolExecutor(workers)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)


def convert(
    checkpoint: Checkpoint, unit: Unit, scale: str, importance: Tensor | None = None
) -> list[Value]:
    """The tensors of a unit in its format, with one tensor scale where the format has one."""
    values = [checkpoint.read(stored.name, alone=True) for stored in unit.members]
    if unit.format is None or unit.as_it_is:
        return values
    for stored, value in zip(unit.members, values, strict=True):
        keep = f"--layers '{stored.name}=keep' before any other --layers"
        check_finite(stored.name, value, f"repair the source, or keep it as it is with {keep}")
    joined = _to_format(_join_rows(values), unit.format, scale, importance)
    if len(values) == 1:
        return [joined]
    ends = torch.tensor([stored.shape[-2] for stored in unit.members]).cumsum(0).tolist()
    return [joined[end - s.shape[-2] : end] for s, end in zip(unit.members, ends, strict=True)]


def _to_format(value: Value, format: Format, scale: str, importance: Tensor | None) -> QTensor:
    """Without loss where that can be."""
    if isinstance(value, QTensor):
        return value.to_format(format, requantize=True, scale=scale)
    return quantize(value, format, scale=scale, importance=importance)


def _join_rows(values: list[Value]) -> Value:
    """[n1, k], [n2, k], ... -> [n1 + n2 + ..., k]; quantised, if that is possible as they are."""
    if len(values) == 1:
        return values[0]
    quantized = [value for value in values if isinstance(value, QTensor)]
    first = quantized[0] if quantized else None
    if first is not None and len(quantized) == len(values):
        alike = all(value.format == first.format for value in quantized)
        if alike and not first.format.has_tensor_scale and not first.format.is_codebook:
            codes, scale = (
                torch.cat([getattr(v, part) for v in quantized]) for part in ("codes", "scale")
            )
            return QTensor.from_storage(first.format, codes, scale)
    return torch.cat([v.dequantize() if isinstance(v, QTensor) else v for v in values])


def _write_rest(plan: Plan, folder: Path) -> None:
    """The index, the descriptions, and the files that belong to a model without being weights."""
    files = plan.checkpoint.files
    for path in _copied(files):
        with open_regular(path) as source, replacing(folder / path.name) as copy:
            shutil.copyfileobj(source, copy)
    if len(plan.shards) > 1:
        write_json(folder / INDEX, index_of(plan.shards))
    description = plan.describe()
    for name, content in description.files.items():
        write_json(folder / name, content)
    config = without_description(untied(files.config, plan.formats))
    write_json(folder / CONFIG, {**config, DESCRIPTION: description.config})


def _copied(files: Files) -> list[Path]:
    """Files of the source that go along as they are; a link out of its folder is an error."""
    if not files.path.is_dir():
        return []
    names = [
        name
        for name in files.members.names()
        if not (name.startswith(".") or name.endswith(_WEIGHTS) or name in _REWRITTEN)
    ]
    found = (files.members.find(name) for name in names)
    return [path for path in found if path is not None]
