"""quantize_'s report tells the truth."""

import math

import pytest
import torch

import blockscale as bs
from blockscale.nn import quantize as quantize_module
from nn.blocks import Model


@pytest.mark.parametrize("panel", [1 << 22, 100])
def test_the_report_has_the_right_numbers(monkeypatch, panel):
    monkeypatch.setattr(quantize_module, "_PANEL", panel)
    model = Model()
    w = model.blocks[1].down_proj.weight.detach().clone()
    report = bs.quantize_(model, bs.KBIT4)
    layer = next(layer for layer in report.layers if layer.name == "blocks.1.down_proj")
    q = bs.quantize(w, bs.KBIT4, scale="mse")
    error = (w - q.dequantize()).double().norm() / w.double().norm()
    assert layer.shape == (64, 96)
    assert layer.format == bs.KBIT4
    assert layer.bytes_before == 64 * 96 * 4
    assert layer.bytes_after == q.nbytes
    assert layer.relative_error == pytest.approx(error.item(), rel=1e-6)
    assert layer.sqnr == pytest.approx(-20 * math.log10(error.item()))
    linears = 2 * (96 * 64 + 64 * 96 + 4 * 64) + 100 * 64
    assert report.bytes_before == 4 * linears
    assert report.bytes_after == 4 * (2 * 4 * 64 + 100 * 64) + 4 * q.nbytes
    assert len(report.quantized) + len(report.kept) == len(report.layers) == 7


def test_the_report_prints_as_a_table():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(40, 40))
    report = bs.quantize_(model, bs.MXFP8)
    head, first, second, total, importance = str(report).splitlines()
    assert head.split() == ["layer", "shape", "format", "before", "after", "error", "SQNR"]
    assert first.split()[:6] == ["0", "64", "x", "64", "mxfp8", "16.38"]
    assert first.endswith(" dB")
    assert "needs k divisible by 32" in second
    assert total == "1 quantised, 1 kept: 22.78 kB -> 10.62 kB (46.6%)"
    assert first.index("mxfp8") == head.index("format")
    assert importance.endswith("weigh the same: Sequential is no language model of transformers")


def test_lossless_weights_have_no_error():
    model = torch.nn.Sequential(torch.nn.Linear(32, 8))
    model[0].weight.data = torch.randint(-6, 7, (8, 32)).float()
    model[0].weight.data[:, 0] = 448
    report = bs.quantize_(model, bs.MXFP8)
    assert report.layers[0].relative_error == 0
    assert report.layers[0].sqnr == math.inf


def test_progress_is_drawn_only_where_it_is_asked_for(capsys):
    bs.quantize_(Model(), bs.NVFP4)
    assert capsys.readouterr().err == ""
    bs.quantize_(Model(), bs.NVFP4, progress=True)
    drawn = capsys.readouterr()
    assert "7/7" in drawn.err
    assert drawn.out == ""
