"""Lines of a terminal: sections, bullets and a table within a width, painted only after they are laid out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from atcfuse.lang import say
from atcfuse.lang.width import display_width
from atcfuse.report.names import printable, wrap

MIN_WIDTH = 40
_BOLD, _DIM, _RED, _GREEN, _YELLOW = "1", "2", "31", "32", "33"
_OF_SEVERITY = {"error": _RED, "warning": _YELLOW, "info": _DIM}


@dataclass
class Page:
    """A text under construction; no line is wider than `width` columns, and none has escapes unless `color`."""

    width: int
    color: bool
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.width = max(self.width, MIN_WIDTH)

    def text(self) -> str:
        """All lines, with a final newline."""
        return "\n".join(self.lines) + "\n"

    def title(self, text: str) -> None:
        """A line in bold."""
        self._add(wrap(text, self.width), _BOLD)

    def section(self, text: str) -> None:
        """An empty line and a title."""
        self.lines.append("")
        self.title(text)

    def bullet(self, text: str, mark: str = "", depth: int = 1) -> None:
        """Text at an indent of two columns a level, after an optional mark."""
        first = "  " * depth + (f"{mark} " if mark else "")
        self._add(wrap(text, self.width, first), {"+": _GREEN, "-": _RED, "~": _YELLOW}.get(mark, ""))

    def detail(self, text: str, depth: int = 2) -> None:
        """A dim line below a bullet."""
        self._add(wrap(text, self.width, "  " * depth), _DIM)

    def diagnostic(self, severity: str, text: str) -> None:
        """A line in the colour of its severity."""
        self._add(wrap(text, self.width, "  ", "    "), _OF_SEVERITY.get(severity, ""))

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Columns, the first to the left, the others to the right.

        Where they do not fit, a row becomes a sentence, below a line that names the columns.
        """
        cells = [[printable(cell) for cell in row] for row in (head, *rows)]
        widths = [max(map(display_width, column)) for column in zip(*cells, strict=True)]
        if 2 + sum(widths) + 2 * (len(widths) - 1) > self.width:
            self.detail(say(", ").join((" → ".join(head[1:-1]), head[-1])), depth=1)
            for row in rows:
                self.bullet(say("{}: {}", row[0], f"{' → '.join(row[1:-1])} {row[-1]}".rstrip()))
            return
        for row in cells:
            padded = [" " * (width - display_width(cell)) for width, cell in zip(widths, row, strict=True)]
            right = "".join(f"  {pad}{cell}" for pad, cell in zip(padded[1:], row[1:], strict=True))
            self.lines.append(f"  {row[0]}{padded[0]}{right}".rstrip())

    def room(self, depth: int, *taken: str) -> int:
        """Columns left on a line at an indent, after the texts `taken` and a space each."""
        return max(self.width - 2 * depth - sum(display_width(text) + 1 for text in taken), 16)

    def _add(self, lines: list[str], style: str) -> None:
        painted = self.color and style
        self.lines += [f"\x1b[{style}m{line}\x1b[0m" if painted else line for line in lines]
