# SPDX-License-Identifier: Apache-2.0
"""Charts as small SVG files, readable on light and on dark pages: bars against a bound, and lines over a logarithmic x."""
import math
from xml.sax.saxutils import escape

STYLE = """<style>
text{font:12px system-ui,sans-serif;fill:#1f2328}.dim{fill:#59636e}.axis{stroke:#59636e}.grid{stroke:#d1d9e0}
.good{fill:#1a7f37}.short{fill:#bc4c00}.s0{stroke:#0969da}.s1{stroke:#8250df}.s2{stroke:#1a7f37}.s3{stroke:#bc4c00}
.f0{fill:#0969da}.f1{fill:#8250df}.f2{fill:#1a7f37}.f3{fill:#bc4c00}polyline{fill:none;stroke-width:2}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.dim{fill:#9198a1}.axis{stroke:#9198a1}.grid{stroke:#3d444d}
.good{fill:#3fb950}.short{fill:#db6d28}.s0{stroke:#4493f8}.s1{stroke:#ab7df8}.s2{stroke:#3fb950}.s3{stroke:#db6d28}
.f0{fill:#4493f8}.f1{fill:#ab7df8}.f2{fill:#3fb950}.f3{fill:#db6d28}}
</style>"""
SERIES_MAX = 4


def _document(width, height, title, body):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img"><title>{escape(title)}</title>{STYLE}\n' + "\n".join(body) + "\n</svg>\n")


def _text(x, y, text, anchor="start", kind=None):
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{escape(text)}</text>'


def _line(x1, y1, x2, y2, kind):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def bars(title, rows):
    """rows: (label, how many times as good as asked, text). A bar that reaches the line at 1 has what was asked; the scale
    is logarithmic, so that twice and half are equally far from it, and cut at a quarter and at eight times."""
    left, width, step, top = 250, 300, 20, 34
    low, high = -2.0, 3.0

    def at(ratio):
        return left + width * (min(max(math.log2(max(ratio, 1e-9)), low), high) - low) / (high - low)

    bottom = top + step * len(rows)
    body = [_text(0, 14, title)]
    for power in range(int(low), int(high) + 1):
        label = f"{2 ** power}x" if power >= 0 else f"1/{2 ** -power}"
        body.append(_line(at(2.0 ** power), top - 4, at(2.0 ** power), bottom, "axis" if power == 0 else "grid"))
        body.append(_text(at(2.0 ** power), bottom + 14, "asked" if power == 0 else label, "middle", "dim"))
    for i, (label, ratio, text) in enumerate(rows):
        y = top + step * i
        body.append(_text(left - 8, y + 12, label, "end"))
        body.append(f'<rect x="{left}" y="{y + 2}" width="{at(ratio) - left:.1f}" height="{step - 6}" rx="2" '
                    f'class="{"good" if ratio >= 1 else "short"}"/>')
        body.append(_text(left + width + 10, y + 12, text, kind="dim"))
    return _document(left + width + 190, bottom + 22, title, body)


def _ticks(low, high):
    """Round values from low to high, four or so."""
    step = 10 ** math.floor(math.log10(max(high - low, 1e-9)))
    for part in (step / 5, step / 2, step, step * 2, step * 5):
        if (high - low) / part <= 5:
            step = part
            break
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value):
    """1500000 as 1.5 M."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def lines(title, x_label, series, x_ticks=None):
    """series: {name: [(x, y), ...]}, at most SERIES_MAX of them. x is logarithmic, y begins at 0."""
    if len(series) > SERIES_MAX:
        raise ValueError(f"more than {SERIES_MAX} series")
    left, top, width, height = 60, 34, 420, 180
    points = [point for values in series.values() for point in values]
    x_low, x_high = (math.log(f(x for x, _ in points)) for f in (min, max))
    y_high = max(y for _, y in points) * 1.08 or 1

    def at(x, y):
        across = (math.log(x) - x_low) / (x_high - x_low) if x_high > x_low else 0.5
        return left + width * across, top + height * (1 - y / y_high)

    body = [_text(0, 14, title)]
    for y in _ticks(0, y_high):
        body.append(_line(left, at(1, y)[1], left + width, at(1, y)[1], "grid"))
        body.append(_text(left - 6, at(1, y)[1] + 4, number(y), "end", "dim"))
    for x in x_ticks or sorted({x for x, _ in points}):
        body.append(_text(at(x, 0)[0], top + height + 16, number(x), "middle", "dim"))
    body.append(_text(left + width / 2, top + height + 34, x_label, "middle", "dim"))
    for i, (name, values) in enumerate(series.items()):
        where = [at(x, y) for x, y in sorted(values)]
        body.append(f'<polyline class="s{i}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in where)}"/>')
        body += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" class="f{i}"/>' for x, y in where]
        body.append(f'<rect x="{left + width + 12}" y="{top + 20 * i}" width="12" height="4" class="f{i}"/>')
        body.append(_text(left + width + 30, top + 6 + 20 * i, name))
    return _document(left + width + 200, top + height + 42, title, body)
