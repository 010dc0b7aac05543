"""A plot as SVG, without a library: jobs in a second above, latency below, over the seconds of the run."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from benteng.ops.bench.report import Point, Report

WIDTH, HEIGHT, LEFT, TOP, GAP = 860, 220, 70, 30, 60
STYLE = (
    "text{font:12px sans-serif;fill:#333}.axis{stroke:#999}.grid{stroke:#eee}"
    ".rate{stroke:#0b6}.p50{stroke:#06c}.p99{stroke:#c30}polyline{fill:none;stroke-width:1.5}"
)
Series = Sequence[tuple[float, float]]


def svg(report: Report) -> str:
    """Return the plot of a report."""
    points = report.points
    last = max((point.second for point in points), default=1.0) or 1.0
    title = f"benteng bench: {report.store}, tier {report.tier}"
    rate = _panel(TOP, "jobs/s", last, {"rate": [(point.second, point.rate) for point in points]})
    latency = _panel(
        TOP + HEIGHT + GAP,
        "ms from enqueue to start",
        last,
        {"p50": _series(points, "p50_ms"), "p99": _series(points, "p99_ms")},
    )
    height = 2 * (HEIGHT + GAP) + TOP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + LEFT + 30} {height}" role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title><style>{STYLE}</style>", *rate, *latency, "</svg>", ""])


def _series(points: Sequence[Point], name: str) -> Series:
    return [(point.second, value) for point in points if (value := getattr(point, name)) is not None]


def _panel(top: int, label: str, last: float, series: dict[str, Series]) -> list[str]:
    highest = max((value for each in series.values() for _, value in each), default=1.0) or 1.0
    lines = [f'<text x="{LEFT}" y="{top - 8}">{escape(label)}: {escape(", ".join(series))}</text>']
    for step in range(5):
        y = top + HEIGHT - step * HEIGHT / 4
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{highest * step / 4:,.4g}</text>')
    for step in range(6):
        x = LEFT + step * WIDTH / 5
        lines.append(f'<text x="{x:.1f}" y="{top + HEIGHT + 18}" text-anchor="middle">{last * step / 5:,.3g} s</text>')
    lines.append(f'<line class="axis" x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{top + HEIGHT}" y2="{top + HEIGHT}"/>')
    for name, each in series.items():
        places = " ".join(f"{LEFT + x / last * WIDTH:.1f},{top + HEIGHT - y / highest * HEIGHT:.1f}" for x, y in each)
        lines.append(f'<polyline class="{name}" points="{places}"/>')
    return lines
