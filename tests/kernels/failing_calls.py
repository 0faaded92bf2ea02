"""Every native function with each of its allocations refused, one after the other.

    LD_PRELOAD=failing_malloc.so python failing_calls.py

Prints a line for each function: its name, how many calls ended in which way, and an error message.
Each call is made in a child of fork, whose pool of threads is new: workers are started in it, and
get their memory. After it the same call must have the right bits.
"""

import ctypes
import json
import os
from collections import Counter

import torch

import blockscale as bs
from blockscale.runtime.native_library import Native
from ways import INT8, NATIVE

ALLOCATIONS = ctypes.CDLL(None)
MOST = 100  # allocations of a call


class Refusing:
    """Stands before native calls, and refuses the nth allocation of each."""

    nth = 0  # none
    all_after_it = False
    refused = 0
    functions: tuple[str, ...] = ()

    def call(self, native, function, arguments):
        self.functions += (function,)
        if not self.nth:
            return plain_call(native, function, arguments)
        ALLOCATIONS.refuse(self.nth, int(self.all_after_it))
        try:
            return plain_call(native, function, arguments)
        finally:
            self.refused += ALLOCATIONS.stop_refusing()


plain_call, refusing = Native.call, Refusing()
Native.call = lambda *arguments: refusing.call(*arguments)


def end_of(work, expected, nth, all_after_it):
    """How a call ends: allocations that were refused, right or not, and an error's message."""
    torch.set_num_threads(3)  # one more than the parent's, whose threads' memory a child uses again
    refusing.nth, refusing.all_after_it = nth, all_after_it
    message = ""
    try:
        right = torch.equal(work(), expected)
    except MemoryError as error:
        right, message = False, str(error)
    refusing.nth = 0
    afterwards = torch.equal(work(), expected)
    return refusing.refused, right, afterwards, message


def in_a_child(function, *arguments):
    """What the function says in a child of fork; None where the child was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, json.dumps(function(*arguments)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return json.loads(said) if status == 0 and said else None


def refuse_each(work):
    """Until no allocation is left to refuse."""
    refusing.functions = ()
    expected, ends, message = work(), Counter(), ""
    for all_after_it in (False, True):
        for nth in range(1, MOST):
            end = in_a_child(end_of, work, expected, nth, all_after_it)
            if end is None:
                ends["killed"] += 1
                continue
            refused, right, afterwards, said = end
            message = message or said
            ends["right" if right else "MemoryError" if said else "wrong"] += 1
            ends["wrong afterwards"] += not afterwards
            if not refused:
                break
        else:
            ends["never without a refusal"] += 1
    return {"functions": sorted(set(refusing.functions)), "ends": ends, "message": message}


def products():
    x, w = torch.randn(40, 256), bs.quantize(torch.randn(96, 256), bs.NVFP4)
    best = {way.algorithm: way for way in (*NATIVE, *INT8)}  # instruction sets allocate alike
    for way in best.values():
        with way.only():
            prepared = way.place(w)
            x_format = "int8" if way.algorithm == "int8" else None
            yield lambda w=prepared, how=x_format: bs.matmul(x.bfloat16(), w, x_format=how)


def conversions():
    x = torch.randn(600, 256)
    q = bs.quantize(x, bs.NVFP4)
    yield lambda: bs.quantize(x, bs.NVFP4).codes
    yield lambda: q.dequantize()
    yield lambda: q.prepare().codes


if __name__ == "__main__":
    torch.set_num_threads(2)
    for group in (products, conversions):
        for work in group():
            print(json.dumps(refuse_each(work)))
