"""docs/pictures/imports.svg: which package imports which, drawn from the import statements.

Packages stand on a diagonal, in the order of the layers in pyproject.toml. A line runs right from
each package; where it imports another, a dot joins it to the line that runs down into that one.
Imports run one way, so every line runs right and down.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from html import escape
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_PACKAGE = _ROOT / "src" / "blockscale"
# Pixels.
_MARGIN, _TEXT, _STEP, _ROW = 10, 350, 62, 46
_BOX_WIDTH, _BOX_HEIGHT = 98, 30
_BANDS, _INK, _LINE, _BOX = ("#f3f5f8", "#ffffff"), "#1f2933", "#9fb3c8", "#d9e8f6"


def layers() -> list[list[str]]:
    """The contract "imports run one way": packages of each layer, the topmost first."""
    found = re.search(r"^layers = (\[.*?^\])", (_ROOT / "pyproject.toml").read_text(), re.M | re.S)
    if found is None:
        raise ValueError("pyproject.toml has no layers")
    return [layer.split(" | ") for layer in ast.literal_eval(found[1])]


def imported_packages(package: str) -> set[str]:
    """What the files of a package import of the others, inside functions too."""
    others = {name for layer in layers() for name in layer} - {package}
    return {name for file in _files(package) for name in _names(file)} & others


def imports_picture() -> str:
    """The drawing."""
    order = [name for layer in layers() for name in layer]
    width = 2 * _MARGIN + _TEXT + (len(order) - 1) * _STEP + _BOX_WIDTH
    height = 2 * _MARGIN + len(order) * _ROW
    size = f'width="{width}" height="{height}"'
    box = f'viewBox="0 0 {width} {height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} {size} font-family="sans-serif">',
        f'<rect {size} fill="#ffffff"/>',
        *_bands(width),
        *_arrows(order),
        *(part for place, name in enumerate(order) for part in _box(place, name)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _files(package: str) -> list[Path]:
    folder = _PACKAGE / package
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]


def _names(file: Path) -> Iterator[str]:
    """Packages that a file imports."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"), str(file))):
        if isinstance(node, ast.Import):
            modules = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            modules = [f"{node.module}.{each.name}" for each in node.names]
        else:
            continue
        for module in modules:
            first, *rest = module.split(".")
            if first == "blockscale" and rest:
                yield rest[0]


def _bands(width: int) -> Iterator[str]:
    """A stripe behind each layer."""
    top = _MARGIN
    for number, layer in enumerate(layers()):
        height = len(layer) * _ROW
        colour = _BANDS[number % len(_BANDS)]
        yield f'<rect x="0" y="{top}" width="{width}" height="{height}" fill="{colour}"/>'
        top += height


def _arrows(order: list[str]) -> Iterator[str]:
    imported = {name: imported_packages(name) for name in order}
    stroke = f'stroke="{_LINE}" stroke-width="2" fill="none"'
    for place, name in enumerate(order):
        targets = [order.index(each) for each in imported[name]]
        if targets:
            x, y = _centre(place)
            yield f'<path d="M{x} {y}H{_centre(max(targets))[0]}" {stroke}/>'
        sources = [order.index(each) for each in order if name in imported[each]]
        if sources:
            x, y = _centre(place)
            end = y - _BOX_HEIGHT // 2
            yield f'<path d="M{x} {_centre(min(sources))[1]}V{end - 6}" {stroke}/>'
            yield f'<path d="M{x - 5} {end - 9}h10l-5 9z" fill="{_LINE}"/>'
    for place, name in enumerate(order):
        for target in sorted(map(order.index, imported[name])):
            x, y = _centre(target)[0], _centre(place)[1]
            title = f"<title>{name} imports {order[target]}</title>"
            yield f'<circle cx="{x}" cy="{y}" r="5" fill="{_INK}">{title}</circle>'


def _box(place: int, name: str) -> Iterator[str]:
    """A package, and at the left what it says of itself."""
    x, y = _centre(place)
    left, top = x - _BOX_WIDTH // 2, y - _BOX_HEIGHT // 2
    yield (
        f'<rect x="{left}" y="{top}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="5" '
        f'fill="{_BOX}" stroke="{_INK}"/>'
    )
    yield (
        f'<text x="{x}" y="{y + 5}" font-size="14" text-anchor="middle" fill="{_INK}">{name}</text>'
    )
    said = textwrap.wrap(_purpose(name), 52)
    for line, text in enumerate(said):
        at = y + 4 + round((line - (len(said) - 1) / 2) * 15)
        yield f'<text x="{_MARGIN}" y="{at}" font-size="12" fill="{_INK}">{escape(text)}</text>'


def _centre(place: int) -> tuple[int, int]:
    return (
        _MARGIN + _TEXT + place * _STEP + _BOX_WIDTH // 2,
        _MARGIN + place * _ROW + _ROW // 2,
    )


def _purpose(name: str) -> str:
    """The first sentence of a package's docstring."""
    folder = _PACKAGE / name
    file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return re.split(r"\.\s|\.$", text.split("\n\n")[0].replace("\n", " "))[0].replace("`", "")
