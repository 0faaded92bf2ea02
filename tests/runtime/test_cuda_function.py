"""Loading and launching, on a driver made of Python: what is asked of it, and what errors say.

What a GPU does with it is in tests/gpu.
"""

import ctypes
import threading

import pytest
import torch

from blockscale.runtime import torch_private
from blockscale.runtime.cuda import Build, CudaError, current_stream, driver, function, functions
from blockscale.runtime.cuda.driver import LaunchConfig

BUILD = Build("stream.cu", "stream", (("ROWS", 4),))
DEVICE = torch.device("cuda", 0)
ATTRIBUTES = {1: 1024, 3: 0, 4: 96, 8: 48 * 1024 - 1024}
ERRORS = {
    1: ("CUDA_ERROR_INVALID_VALUE", "invalid argument"),
    2: ("CUDA_ERROR_OUT_OF_MEMORY", "out of memory"),
    201: ("CUDA_ERROR_INVALID_CONTEXT", "invalid device context"),
    209: ("CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available"),
}


class Arguments(ctypes.Structure):
    _fields_ = (("x", ctypes.c_void_p), ("n", ctypes.c_int64))


class Driver:
    """The functions of libcuda that are used, with a log. Answers are set by the test."""

    def __init__(self):
        self.log, self.launches, self.contexts = [], [], [None]
        self.answers = {}  # of a function: statuses to give, then success

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments):
            self.log.append(name)
            waiting = self.answers.get(name, [])
            status = waiting.pop(0) if waiting else 0
            if status == 0 and hasattr(self, f"_{name}"):
                getattr(self, f"_{name}")(*arguments)
            return status

        return call

    def _cuCtxPushCurrent_v2(self, context):
        self.contexts.append(context.value)

    def _cuCtxPopCurrent_v2(self, popped):
        self.contexts.pop()

    def _cuCtxGetCurrent(self, context):
        context._obj.value = self.contexts[-1]

    def _cuCtxSetCurrent(self, context):
        self.contexts[-1] = context.value

    def _cuDeviceGet(self, device, index):
        device._obj.value = index

    def _cuDevicePrimaryCtxRetain(self, context, device):
        context._obj.value = 100 + device.value

    def _cuDriverGetVersion(self, version):
        version._obj.value = 13020

    def _cuModuleLoadData(self, module, code):
        module._obj.value = 7
        self.code = code

    def _cuModuleGetFunction(self, handle, module, name):
        handle._obj.value = 0xF00
        self.entry = (module.value, name)

    def _cuFuncGetAttribute(self, value, attribute, handle):
        value._obj.value = ATTRIBUTES[attribute]

    def _cuFuncSetAttribute(self, handle, attribute, value):
        self.log.append((attribute, value))

    def _cuOccupancyMaxActiveBlocksPerMultiprocessor(self, count, handle, threads, shared):
        count._obj.value = 2048 // threads

    def _cuGetErrorName(self, status, words):
        words._obj.value = ERRORS[status][0].encode()

    def _cuGetErrorString(self, status, words):
        words._obj.value = ERRORS[status][1].encode()

    def _cuLaunchKernelEx(self, config, handle, parameters, extra):
        numbers = LaunchConfig.from_address(config)
        fields = [getattr(numbers, name) for name, _ in LaunchConfig._fields_]
        address = ctypes.c_void_p.from_address(parameters).value
        n = Arguments.from_address(address).n
        self.launches.append((fields, handle, n, self.contexts[-1]))


@pytest.fixture
def cuda(monkeypatch):
    """A driver, a current GPU, nothing loaded."""
    made = Driver()
    monkeypatch.setattr(driver, "load_driver", lambda: made)
    monkeypatch.setattr(functions, "load_driver", lambda: made)
    monkeypatch.setattr(functions, "_loaded", {})
    monkeypatch.setattr(functions, "cubin", lambda build, target: f"{build} {target}".encode())
    monkeypatch.setattr(functions, "target_of", lambda device: "sm_90")
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch_private, "current_device", lambda: 0)
    driver._primary.cache_clear()
    yield made
    driver._primary.cache_clear()


def launch(kernel, grid=(3, 2, 1), threads=128, shared=0, stream=0, n=5):
    kernel.launch(grid, threads, shared, stream, Arguments(None, n))


def test_a_kernel_is_loaded_once_for_each_gpu(cuda):
    first = function(BUILD, DEVICE)
    assert cuda.code == f"{BUILD} sm_90".encode()
    assert cuda.entry == (7, b"stream")
    assert (first.registers, first.shared_bytes, first.local_bytes) == (96, 1024, 0)
    assert "96 registers" in repr(first)
    assert function(Build("stream.cu", "stream", (("ROWS", 4),)), DEVICE) is first
    assert function(BUILD, torch.device("cuda")) is first
    assert function(BUILD, torch.device("cuda", 1)) is not first
    assert cuda.log.count("cuModuleLoadData") == 2
    assert cuda.contexts == [None]


def test_threads_load_it_once(cuda):
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(function(BUILD, DEVICE))) for _ in "1234"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1
    assert cuda.log.count("cuModuleLoadData") == 1


def test_a_launch_hands_over_its_numbers_and_its_struct(cuda):
    kernel = function(BUILD, DEVICE)
    before = len(cuda.log)
    launch(kernel, shared=4096, stream=0xABC, n=11)
    ((fields, handle, n, _),) = cuda.launches
    assert fields == [3, 2, 1, 128, 1, 1, 4096, 0xABC, None, 0]
    assert (handle, n) == (0xF00, 11)
    launch(kernel, shared=4096, stream=0xABC, n=12)
    assert cuda.launches[1][0] == fields
    assert cuda.launches[1][2] == 12
    assert cuda.log[before:] == ["cuLaunchKernelEx"] * 2  # and nothing else


def test_launches_of_many_shapes_do_not_pile_up(cuda, monkeypatch):
    monkeypatch.setattr(functions, "_MOST_CONFIGS", 3)
    kernel = function(BUILD, DEVICE)
    for width in range(1, 9):
        launch(kernel, grid=(width, 1, 1))
        assert len(kernel._configs) <= 3
    assert [fields[0] for fields, *_ in cuda.launches] == list(range(1, 9))


def test_large_shared_memory_is_asked_for_when_it_grows(cuda):
    kernel = function(BUILD, DEVICE)
    for shared in (47 * 1024, 48 * 1024, 100_000, 60_000, 100_000, 200_000):
        launch(kernel, shared=shared)
    asked = [each for each in cuda.log if isinstance(each, tuple)]
    assert asked == [(8, 48 * 1024), (8, 100_000), (8, 200_000)]


def test_occupancy(cuda):
    kernel = function(BUILD, DEVICE)
    assert kernel.occupancy(256, 100_000) == 8
    assert (8, 100_000) in cuda.log


def test_another_gpu_than_the_current_one(cuda):
    """The default stream belongs to the current context."""
    launch(function(BUILD, torch.device("cuda", 1)))
    assert cuda.launches[0][3] == 101
    assert cuda.contexts == [None]


def test_a_thread_that_has_not_used_cuda(cuda):
    kernel = function(BUILD, DEVICE)
    cuda.answers["cuLaunchKernelEx"] = [201]
    launch(kernel)
    assert cuda.launches[0][3] == 100
    assert cuda.contexts == [100]  # where cuBLAS finds it, which warns of a thread without one


def test_a_context_of_somebody_else_stays_the_threads_own(cuda):
    kernel = function(BUILD, DEVICE)
    cuda.contexts, cuda.answers["cuLaunchKernelEx"] = [55], [201]
    launch(kernel)
    assert cuda.launches[0][3] == 100
    assert cuda.contexts == [55]


def test_a_launch_that_is_refused_says_what_was_asked_for(cuda):
    kernel = function(BUILD, DEVICE)
    cuda.answers["cuLaunchKernelEx"] = [1]
    with pytest.raises(CudaError) as failure:
        launch(kernel, grid=(0, 1, 1), threads=2048, shared=7)
    assert str(failure.value) == (
        "stream.cu:stream [ROWS=4]: grid (0, 1, 1), 2048 threads, 7 shared bytes: "
        "CUDA_ERROR_INVALID_VALUE: invalid argument"
    )


def test_too_much_shared_memory(cuda):
    kernel = function(BUILD, DEVICE)
    cuda.answers["cuFuncSetAttribute"] = [1]
    with pytest.raises(
        CudaError, match="300000 bytes of dynamic shared memory: CUDA_ERROR_INVALID"
    ):
        launch(kernel, shared=300_000)


def test_out_of_memory_says_so(cuda):
    cuda.answers["cuModuleLoadData"] = [2]
    with pytest.raises(torch.OutOfMemoryError, match=r"loading .* the GPU is out of memory"):
        function(BUILD, DEVICE)
    function(BUILD, DEVICE)  # the next try is a fresh one


def test_code_that_the_driver_cannot_read(cuda):
    cuda.answers["cuModuleLoadData"] = [209]
    with pytest.raises(CudaError, match=r"the driver knows CUDA 13\.2: is NVRTC newer"):
        function(BUILD, DEVICE)


def test_nothing_is_compiled_while_a_graph_is_captured(cuda, monkeypatch):
    loaded = function(BUILD, DEVICE)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert function(BUILD, DEVICE) is loaded
    with pytest.raises(RuntimeError, match="make the same call once before capturing") as failure:
        function(Build("stream.cu", "other"), DEVICE)
    assert "blockscale warmup" in str(failure.value)


def test_streams(cuda, monkeypatch):
    raw = lambda index: 1000 + index  # noqa: E731
    monkeypatch.setattr(torch_private, "raw_stream", raw)
    assert current_stream(torch.device("cuda", 2)) == 1002
    assert current_stream(torch.device("cuda")) == 1000


def test_where_there_is_no_driver(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(driver.ctypes, "CDLL", missing)
    driver.load_driver.cache_clear()
    try:
        assert driver.driver_version() is None
        with pytest.raises(CudaError, match=r"no CUDA driver: libcuda\.so\.1: cannot open"):
            driver.load_driver()
    finally:
        driver.load_driver.cache_clear()
