"""Asking a process of its own whether a kernel works, and not waiting for it forever."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
from threading import Thread
from types import TracebackType
from typing import IO, Any

import torch

from blockscale.kernels import Config, Kernel
from blockscale.ops.proof.server import BUILT, MARK, NO_MEMORY, READY, as_request
from blockscale.problem import Problem

COMMAND = (sys.executable or "python", "-m", "blockscale.ops.proof.server")
_START_SECONDS = 180  # torch is imported, and the driver started
_BUILD_SECONDS = 900  # on a machine with few cores
_RUN_SECONDS = 60  # a few dozen small launches
_SHOWN = 300  # characters of what a process has said in the end


class CannotProveError(RuntimeError):
    """Nothing was found out about a kernel, and why."""


class Prover:
    """A context. Its process is started with the first question, and anew after one that it did not
    survive."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._process: _Process | None = None

    def find_failure(self, kernel: Kernel, problem: Problem, config: Config | None) -> str | None:
        """What is wrong with a kernel; None where it works. `torch.OutOfMemoryError` where the
        process had no memory for it."""
        if self._process is None:
            self._process = _Process(self._device)
            try:
                self._process.wait_for(READY, _START_SECONDS)
            except _EndedError as ended:
                self._stop()
                raise CannotProveError(f"the process that would prove it {ended}") from None
        process = self._process
        process.ask(as_request(kernel, problem, config))
        try:
            process.wait_for(BUILT, _BUILD_SECONDS)
            found = process.answer(_RUN_SECONDS)
        except _EndedError as ended:
            self._stop()
            return f"its process {ended}"
        if NO_MEMORY in found:
            raise torch.OutOfMemoryError(found[NO_MEMORY])
        failure: str = found["failure"]
        return failure or None

    def __enter__(self) -> Prover:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None


class _EndedError(Exception):
    """How a process ended, as the rest of a sentence."""


class _Process:
    def __init__(self, device: torch.device) -> None:
        try:
            self._process = subprocess.Popen(  # noqa: S603
                [*COMMAND, str(device)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise CannotProveError(f"no process can be started for it: {error}") from None
        self._answers: queue.Queue[Any] = queue.Queue()
        self._said = ""
        self._readers = [
            Thread(target=read, args=(pipe,), daemon=True)
            for read, pipe in (
                (self._read_answers, self._process.stdout),
                (self._read_errors, self._process.stderr),
            )
        ]
        for reader in self._readers:
            reader.start()

    def ask(self, request: dict[str, Any]) -> None:
        if self._process.stdin is not None:
            try:
                self._process.stdin.write(json.dumps(request) + "\n")
                self._process.stdin.flush()
            except OSError:  # it has ended, as the wait for its answer will say
                pass

    def wait_for(self, content: dict[str, Any], seconds: float) -> None:
        found = self.answer(seconds)
        if found != content:
            raise _EndedError(f"answered {found!r:.80} where {content} was due")

    def answer(self, seconds: float) -> dict[str, Any]:
        try:
            found: dict[str, Any] | None = self._answers.get(timeout=seconds)
        except queue.Empty:
            raise _EndedError(f"gave no answer for {seconds:g} s: it hangs") from None
        if found is None:
            status = self._process.wait()
            self._readers[1].join(timeout=1)
            last = self._said.strip().rpartition("\n")[2][:_SHOWN]
            raise _EndedError(f"ended with status {status}{': ' if last else ''}{last}")
        return found

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join(timeout=1)

    def _read_answers(self, pipe: IO[str]) -> None:
        for line in pipe:
            if line.startswith(MARK):
                self._answers.put(json.loads(line.removeprefix(MARK)))
        self._answers.put(None)

    def _read_errors(self, pipe: IO[str]) -> None:
        for line in pipe:
            self._said = (self._said + line)[-4096:]
