"""The commands for GPUs from end to end, on a CPU that takes the GPU's part.

What only a GPU can do fails, and must be reported by name without harm to the rest.
"""

import pytest
import torch

from bench import (
    batched_gemv,
    cuda_timing,
    experts,
    gpu_quantize,
    host_cost,
    quantized_products,
    run,
    verbs,
)
from bench.cuda_tables import performance_tables
from bench.cuda_timing import SAMPLE_SECONDS, CudaStopwatch
from bench.measurements import load as load_report
from bench.problems import ExpertLayer, Product
from bench.results import BASELINE, FAILED, TIMED, load
from bench.timing import CpuClock
from bench.verbs_tables import verbs_tables
from blockscale.runtime import device_of

MACHINE = {
    "gpu": "Example GPU",
    "driver": "1.0",
    "l2_bytes": 1000,
    "product_flops_per_second": 1e12,
}


class InPlaceOfGpu(CpuClock):
    def ring_bytes(self, rivals):
        return 1


@pytest.fixture
def _no_gpu_needed(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(run.CLOCKS, "cuda", InPlaceOfGpu)
    monkeypatch.setattr(verbs, "CudaClock", InPlaceOfGpu)
    for module in (run, verbs):
        monkeypatch.setattr(module, "describe_gpu", lambda: MACHINE)
    cpu = device_of(torch.device("cpu"))
    monkeypatch.setattr(verbs, "device_of", lambda device: cpu)
    monkeypatch.setattr("bench.rivals.blockscale_cuda._device", lambda: cpu)
    monkeypatch.setattr("bench.rivals.blockscale_cuda.BlockscaleCuda.missing", lambda self: "")
    monkeypatch.setattr("bench.rivals.cuda_read.CudaRead.missing", lambda self: "")
    monkeypatch.setattr("bench.experts.l2_bytes", lambda device: 1000)


@pytest.mark.usefixtures("_no_gpu_needed")
def test_a_whole_run(tmp_path, capsys):
    path = tmp_path / "run.json"
    options = "--device cuda --shapes 64x128 --rows 1,2 --seconds 0.001 --formats nvfp4,kbit2"
    assert run.main([*options.split(), "--rivals", "humming", "--out", str(path)]) == 0
    found, shown = load(path), capsys.readouterr().out
    assert found.device == "cuda"
    assert set(found.missing) == {"humming nvfp4", "humming mxfp4"}
    one, two = found.cases
    for name in (BASELINE, "NVFP4"):
        assert one.entry(name).outcome == TIMED, one.entry(name).reason
        assert two.entry(name).ratio is not None
    assert one.entry("KBIT2").outcome == TIMED
    assert two.entry("KBIT2") is None
    assert one.entry("read of 4.5 bits").outcome == FAILED
    assert "Example GPU, driver 1.0" in shown
    assert "64 x 128, 2" in shown
    assert "#### 64 x 128" in performance_tables([found])


@pytest.mark.usefixtures("_no_gpu_needed")
def test_all_other_verbs(tmp_path, monkeypatch, capsys):
    layer = ExpertLayer(model="small", experts=8, top=2, hidden=64, inner=32, tokens=(1, 4))
    product = Product(verb="matmul", source="", m=1, n=64, k=128, batch=2)
    monkeypatch.setattr(experts, "EXPERT_LAYERS", (layer,))
    monkeypatch.setattr(batched_gemv, "SHAPES", (product,))
    many = [
        Product(verb="matmul", source="MXFP8 cubes", m=64, n=64, k=64),
        Product(verb="gated_matmul", source="", m=3, n=64, k=128),
        Product(verb="grouped_matmul", source="", m=5, n=64, k=128, groups=(3, 2)),
    ]
    monkeypatch.setattr(quantized_products, "SHAPES", many)
    monkeypatch.setattr(gpu_quantize, "SIDE", 64)
    monkeypatch.setattr(verbs, "_SECONDS", 0.001)
    monkeypatch.setattr(host_cost, "SHAPE", host_cost.SMALL)
    monkeypatch.setattr(host_cost, "_CALLS", 2)
    path = tmp_path / "verbs.json"
    assert verbs.main(["--out", str(path)]) == 0
    report, shown = load_report(path), capsys.readouterr().out
    by_name = {(line.problem.split(",")[-1], line.name): line for line in report.measurements}
    assert by_name[" 4 tokens", "NVFP4"].ratio is not None
    assert by_name[" 1 tokens", "KBIT4"].outcome == TIMED
    assert by_name[" 2 batches", "NVFP4"].outcome == TIMED
    products = {
        line.problem.split(",")[0]: line
        for line in report.measurements
        if line.work == quantized_products.WORK and line.name != BASELINE
    }
    assert products["GEMM"].name == "MXFP8"
    assert products["GEMM"].ratio is not None
    assert products["gated dual GEMM"].outcome == TIMED
    assert products["grouped GEMM"].outcome == TIMED
    assert by_name["64 x 64", "MXFP8 mse"].ratio is not None
    assert by_name["64 x 64", "NVFP4 absmax, tensor scale given"].outcome == TIMED
    assert "stored:" in shown
    assert "**Quantising bfloat16**" in verbs_tables([report])


def test_without_a_gpu_it_says_so(capsys):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert run.main(["--device", "cuda"]) == 1
    assert verbs.main([]) == 1
    assert capsys.readouterr().out.count("sees no CUDA device") == 2


class FakeGraph:
    """Knows the calls that were made while it captured."""

    taken = 0

    def __init__(self):
        FakeGraph.last = self
        self.calls = 0

    def capture_begin(self, capture_error_mode):
        FakeGraph.taken = 0

    def capture_end(self):
        self.calls = FakeGraph.taken

    def replay(self):
        FakeEvent.now += self.calls * FakeEvent.per_call


class FakeEvent:
    now, per_call = 0.0, 0.01  # milliseconds

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at = FakeEvent.now

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return end.at - self.at


@pytest.fixture
def _fake_cuda(monkeypatch):
    monkeypatch.setattr(cuda_timing.torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(cuda_timing.torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(cuda_timing.torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(cuda_timing.torch.cuda, "_sleep", lambda cycles: None)


@pytest.mark.usefixtures("_fake_cuda")
def test_a_ring_is_captured_whole_and_often_enough():
    def call():
        FakeGraph.taken += 1

    watch = CudaStopwatch([call] * 7)
    assert watch.warm_up() == pytest.approx(1e-5)
    assert watch.sample() == pytest.approx(1e-5)
    assert FakeGraph.last.calls % 7 == 0
    assert FakeGraph.last.calls * 1e-5 >= SAMPLE_SECONDS


@pytest.mark.usefixtures("_fake_cuda")
def test_the_first_error_of_a_capture_is_the_one_that_is_told():
    made = []

    def call():
        made.append(1)
        if len(made) > 1:
            raise ValueError("not twice")

    with pytest.raises(ValueError, match="not twice"):
        CudaStopwatch([call])
