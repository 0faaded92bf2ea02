"""A language model in six sizes: what each answers, how fast, and how well it predicts.

SmolLM2-135M-Instruct, unquantised and in five formats: linear layers are quantised without any
data, embeddings and head are kept. On a CPU, one of them once more, made faster by `optimize_`. A
table, and a picture of size, quality and speed.

    python examples/smollm2.py [--out FILE.png] [--tokens N] [--minutes M] [--prompt TEXT]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import blockscale as bs
from blockscale.models import (
    Quality,
    Recipe,
    Speed,
    emulates_bfloat16,
    encode,
    generate,
    judge,
    load_model,
    load_tokenizer,
    race,
    tokenize,
)
from blockscale.nn import measure_importance
from blockscale.runtime import describe_device
from demo_model import smollm2, trained, why_not_smollm2

FORMATS = ("mxfp8", "kbit5", "nvfp4", "kbit4", "kbit3")
OPTIMIZED = "kbit4"  # x in int8, and tokens after the prompt by one native call
WINDOW = 512  # tokens that are predicted together
_INK, _ORIGINAL, _QUANTISED = "#333333", "#bbbbbb", "#3182bd"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("build/demo.png"), help="picture to write")
    parser.add_argument("--tokens", type=int, default=20_481, help="of text that is predicted")
    parser.add_argument(
        "--minutes", type=float, default=5.0, help="for predicting: a slow machine takes less text"
    )
    parser.add_argument("--max-tokens", type=int, default=48, help="of each answer")
    parser.add_argument("--rounds", type=int, default=6, help="of timing, all models in each")
    parser.add_argument("--prompt", default="What is a quantised neural network?")
    parser.add_argument("--folder", type=Path, default=Path("build"), help="where models are kept")
    parser.add_argument("--train", action="store_true", help="use a model that is trained here")
    arguments = parser.parse_args()

    console = Console(highlight=False)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    folder, title = _model(arguments, console)
    tokenizer = load_tokenizer(folder)
    ids = tokenize(tokenizer, None, arguments.tokens)
    original = load_model(folder, device=device)
    name = str(original.dtype).removeprefix("torch.")
    models = {name: original}
    importance = measure_importance(original)  # once, on random token ids
    for each in FORMATS:
        models[each] = Recipe.parse(each).copy_of(original, importance=importance)
    console.print(f"{title} on {describe_device(device)}")
    if device.type == "cpu":
        fast = Recipe.parse(OPTIMIZED).copy_of(original, importance=importance)
        models[f"{OPTIMIZED}, fast"] = fast
        console.print(f"{OPTIMIZED}, fast: by optimize_, {'; '.join(bs.optimize_(fast).changed)}")
    if emulates_bfloat16(device):
        console.print("this CPU emulates bfloat16: the unquantised model computes in float32")
    console.print()

    _answer(models, tokenizer, arguments.prompt, arguments.max_tokens, console)
    speeds = race(models, encode(tokenizer, arguments.prompt, chat=True), rounds=arguments.rounds)
    ids = _affordable(ids, original, len(models), arguments.minutes, console)
    qualities = _judge(models, ids, name, console)
    console.print(_table(qualities, speeds))
    draw(qualities, speeds, f"{title} on {describe_device(device)}", arguments.out)
    console.print(f"picture: {arguments.out}")


def _model(arguments: argparse.Namespace, console: Console) -> tuple[Path, str]:
    reason = "a trained one is wanted" if arguments.train else why_not_smollm2()
    if not reason:
        return smollm2(arguments.folder / "smollm2", console), "SmolLM2-135M-Instruct"
    console.print(f"no SmolLM2 ({reason}): a small model is trained instead")
    return trained(arguments.folder / "trained", console), "a small trained model"


def _answer(models: dict, tokenizer, prompt: str, max_tokens: int, console: Console) -> None:
    """What each model writes."""
    console.print(f"[bold]{prompt}")
    for name, model in models.items():
        answer = generate(model, tokenizer, prompt, max_tokens)
        console.print(f"[bold]{name:11s}[/] ", end="")
        console.print(" ".join(answer.text.split()), markup=False)
    console.print()


def _affordable(
    ids: torch.Tensor, model, models: int, minutes: float, console: Console
) -> torch.Tensor:
    """As much of the text as the models predict in the time there is, in whole windows."""
    window = ids[None, :WINDOW].to(model.device)
    with torch.inference_mode():
        model(window)
        begin = time.perf_counter()
        model(window)
    # For one window of all models; decoding weights and comparing predictions take as long again.
    seconds = 2 * models * (time.perf_counter() - begin)
    count = max(4, int(60 * minutes / seconds)) * WINDOW + 1
    if count >= len(ids):
        return ids
    console.print(
        f"this machine predicts {models * WINDOW / seconds:.0f} tokens a second: {count - 1:,} "
        f"tokens of text instead of {len(ids) - 1:,} fit into {minutes:g} minutes (--minutes)"
    )
    return ids[:count]


def _judge(models: dict, ids: torch.Tensor, reference: str, console: Console) -> list[Quality]:
    columns = (
        TextColumn("predicting {task.completed} of {task.total} tokens"),
        BarColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=len(ids) - 1)
        return judge(
            models,
            ids,
            reference=reference,
            length=WINDOW,
            on_tokens=lambda count: bar.advance(task, count),
        )


def _table(qualities: list[Quality], speeds: dict[str, Speed]) -> Table:
    base = qualities[0]
    table = Table(
        title=f"perplexity over {base.tokens:,} tokens of Python's language reference",
        title_justify="left",
        caption_justify="left",
        box=SIMPLE,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("weights")
    for heading in ("bits/weight", "MB", "perplexity", "ratio", "tokens/s", "speed"):
        table.add_column(heading, justify="right", no_wrap=True)
    for quality in qualities:
        speed, reference = speeds[quality.name], speeds[base.name]
        noise = quality is not base and not speed.differs(reference)
        table.add_row(
            quality.name,
            f"{quality.bits_per_weight:.2f}",
            f"{quality.bytes / 1e6:.1f}",
            f"{quality.perplexity:.2f} ± {quality.perplexity_error:.2f}",
            f"{quality.ratio:.3f} ± {quality.ratio_error:.3f}",
            f"{speed.tokens_per_second:.1f}",
            f"{'~ ' if noise else ''}{speed.ratio(reference):.2f}x",
        )
    table.caption = (
        f"tokens/s and speed: medians of {len(speeds[base.name].samples)} rounds in turn; ~ is "
        "within the noise: rounds disagree about which is faster"
    )
    return table


def draw(qualities: list[Quality], speeds: dict[str, Speed], title: str, path: Path) -> None:
    """Three bars for each model: size, perplexity, speed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = [quality.name for quality in qualities]
    base = qualities[0]
    figure, (size, perplexity, speed) = plt.subplots(1, 3, figsize=(13, 4.2), sharey=True)
    _bars(size, names, [q.bytes / 1e6 for q in qualities], "{:.0f}", "size, MB (less is better)")
    _bars(
        perplexity,
        names,
        [q.perplexity for q in qualities],
        "{:.2f}",
        f"perplexity, {base.tokens:,} tokens (less is better)",
        # Beside the original's, only the error of the ratio tells two models apart.
        errors=[q.perplexity * q.ratio_error / q.ratio for q in qualities],
        most=2 * base.perplexity,
    )
    rates = [speeds[name].tokens_per_second for name in names]
    spread = [(max(speeds[name].samples) - min(speeds[name].samples)) / 2 for name in names]
    title_of_rates = "tokens a second (more is better)"
    _bars(speed, names, rates, "{:.1f}", title_of_rates, errors=spread)
    size.invert_yaxis()
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    figure.tight_layout(rect=(0, 0, 1, 0.98))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def _bars(
    axes, names: list[str], values: list[float], label: str, title: str, *, errors=None, most=None
) -> None:
    """Horizontal bars with their numbers; those beyond `most` are cut, and say so."""
    most = min(max(values), most or max(values))
    colours = [_ORIGINAL] + [_QUANTISED] * (len(names) - 1)
    shown = [min(value, most) for value in values]
    whole = [value <= most for value in values]
    bars = [
        error if fits else 0 for error, fits in zip(errors or [0] * len(names), whole, strict=False)
    ]
    axes.barh(names, shown, color=colours, xerr=bars, ecolor=_INK)
    for row, (value, fits) in enumerate(zip(values, whole, strict=True)):
        text = label.format(value) + ("" if fits else "  (cut)")
        end = min(value, most) + bars[row]
        axes.annotate(text, (end, row), xytext=(6, 0), textcoords="offset points", va="center")
    axes.set_xlim(0, 1.25 * most)
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xticks([])
    for edge in ("top", "right", "bottom"):
        axes.spines[edge].set_visible(False)


if __name__ == "__main__":
    main()
