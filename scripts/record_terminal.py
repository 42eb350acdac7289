"""Record the commands of the README in a terminal, and write docs/images/terminal.svg.

Run `python -m scripts.record_terminal`. The commands run for real, in a pseudo-terminal and a
folder of their own; long pauses are cut. The animation is SVG and CSS alone; without animation it
shows the last screen.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from dataclasses import dataclass, field
from fcntl import ioctl
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/images/terminal.svg"
PROGRAM = ROOT / "examples/train_small.py"
COLUMNS, ROWS = 104, 27
# What is typed, and how long its last screen stays.
STORY = (
    ("export DIPU_QUIRKS=ignore_strides:mm    # a fault, switched on in the reference device", 0.4),
    ("deeplink run train.py", 1.0),
    ("deeplink bisect train.py", 2.2),
    ("deeplink run --fallback aten.mm.default train.py", 3.0),
)
TYPED, PAUSE, STEP = 0.018, 0.16, 0.08  # seconds: a letter, the longest pause, between two frames

Style = tuple[str, bool, bool]  # colour, bold, dim
PLAIN: Style = ("", False, False)
COLOURS = "#484f58 #ff7b72 #7ee787 #e3b341 #79c0ff #d2a8ff #76e3ea #c9d1d9".split()
BRIGHT = "#6e7681 #ffa198 #aff5b4 #f2cc60 #a5d6ff #e2c5ff #b3f0ff #ffffff".split()
SEQUENCE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\x1b\][^\x07]*\x07|\x1b[()][A-Z0-9]|\x1b[=>]")


@dataclass
class Screen:
    """The text of a terminal, as far as the commands here use one: lines, colours, cursor moves."""

    lines: list[list[tuple[str, Style]]] = field(default_factory=lambda: [[]])
    row: int = 0
    column: int = 0
    style: Style = PLAIN

    def feed(self, text: str) -> None:
        """Show text with its control sequences."""
        at = 0
        while at < len(text):
            found = SEQUENCE.match(text, at)
            if found:
                if found[2]:
                    self._control(found[1], found[2])
                at = found.end()
                continue
            self._letter(text[at])
            at += 1

    def _letter(self, letter: str) -> None:
        if letter == "\r":
            self.column = 0
        elif letter == "\n":
            self.row += 1
            while len(self.lines) <= self.row:
                self.lines.append([])
        elif letter >= " ":
            if self.column >= COLUMNS:
                self._letter("\n")
                self.column = 0
            line = self.lines[self.row]
            line += [(" ", PLAIN)] * (self.column + 1 - len(line))
            line[self.column] = (letter, self.style)
            self.column += 1

    def _control(self, given: str, what: str) -> None:
        count = int(given) if given.isdigit() else 1
        if what == "A":
            self.row = max(0, self.row - count)
        elif what == "B":
            self.row = min(len(self.lines) - 1, self.row + count)
        elif what == "G":
            self.column = count - 1
        elif what == "K":
            keep = 0 if given == "2" else self.column
            del self.lines[self.row][keep:]
        elif what == "J":
            del self.lines[self.row][self.column :]
            del self.lines[self.row + 1 :]
        elif what == "m":
            for code in map(int, filter(None, (given or "0").split(";"))):
                self._sgr(code)

    def _sgr(self, code: int) -> None:
        colour, bold, dim = self.style
        if code == 0:
            self.style = PLAIN
        elif code in (1, 2, 22):
            self.style = (colour, code == 1, code == 2)
        elif 30 <= code <= 37:
            self.style = (COLOURS[code - 30], bold, dim)
        elif 90 <= code <= 97:
            self.style = (BRIGHT[code - 90], bold, dim)
        elif code == 39:
            self.style = ("", bold, dim)

    def shown(self) -> list[str]:
        """The lines that fit, each as SVG."""
        return [_svg(line) for line in self.lines[-ROWS:]]


def _svg(line: list[tuple[str, Style]]) -> str:
    spans: list[tuple[str, Style]] = []
    for letter, style in line:
        if spans and spans[-1][1] == style:
            spans[-1] = (spans[-1][0] + letter, style)
        else:
            spans.append((letter, style))
    while spans and not spans[-1][0].strip():
        spans.pop()
    text = ""
    for letters, (colour, bold, dim) in spans:
        attributes = f' fill="{colour}"' if colour else ""
        attributes += ' font-weight="bold"' if bold else ""
        attributes += ' opacity="0.6"' if dim else ""
        text += f"<tspan{attributes}>{escape(letters)}</tspan>" if attributes else escape(letters)
    return text


@dataclass
class Film:
    """Screens, and when each begins."""

    screen: Screen = field(default_factory=Screen)
    frames: list[tuple[float, list[str]]] = field(default_factory=list)
    now: float = 0.0

    def show(self, text: str, after: float) -> None:
        """Add text after so many seconds."""
        self.now += after
        self.screen.feed(text)
        if self.frames and self.now - self.frames[-1][0] < STEP:
            self.frames[-1] = (self.frames[-1][0], self.screen.shown())
        else:
            self.frames.append((self.now, self.screen.shown()))


def record(folder: Path) -> Film:
    """Type the story into a shell's place, run it, and film it."""
    film = Film()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("DIPU_")},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "TERM": "xterm",
        "COLUMNS": str(COLUMNS),
        "LINES": str(ROWS),
    }
    for typed, hold in STORY:
        film.show("\x1b[1;32m$\x1b[0m ", 0.3)
        for letter in typed:
            film.show(letter, TYPED)
        film.show("\r\n", 0.2)
        print(f"$ {typed}", flush=True)
        if typed.startswith("export "):
            name, _, value = typed.split()[1].partition("=")
            environment[name] = value
        else:
            _run(typed.split(), folder, environment, film)
        film.now += hold
    return film


def _run(words: list[str], folder: Path, environment: dict[str, str], film: Film) -> None:
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    child = subprocess.Popen(
        words, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    last = time.monotonic()
    while True:
        ready, _, _ = select.select([ours], [], [], 0.1)
        if not ready:
            if child.poll() is not None:
                break
            continue
        try:
            data = os.read(ours, 1 << 16)
        except OSError:  # the child has closed its end
            break
        if not data:
            break
        now = time.monotonic()
        film.show(data.decode("utf-8", "replace"), min(PAUSE, now - last))
        last = now
    os.close(ours)
    child.wait()


STYLE = """
text {{ font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #c9d1d9; white-space: pre; }}
#film {{ animation: film {seconds:.2f}s steps(1, end) infinite; transform: translateY({last}px); }}
@media (prefers-reduced-motion: reduce) {{ #film {{ animation: none; }} }}
@keyframes film {{ {keys} }}
"""  # noqa: E501


def svg(film: Film) -> str:
    """The film as SVG: every different line once, frames below each other, moved into view."""
    width, line, height = 8 * COLUMNS + 24, 17, 17 * ROWS
    names: dict[str, str] = {}
    groups, keys = [], []
    for number, (begin, lines) in enumerate(film.frames):
        uses = []
        for at, text in enumerate(lines):
            if text:
                name = names.setdefault(text, f"l{len(names)}")
                uses.append(f'<use href="#{name}" y="{number * height + (at + 1) * line}"/>')
        groups.append("".join(uses))
        keys.append(
            f"{100 * begin / film.now:.2f}% {{ transform: translateY({-number * height}px) }}"
        )
    last = -(len(film.frames) - 1) * height
    keys.append(f"100% {{ transform: translateY({last}px) }}")
    style = STYLE.format(seconds=film.now, last=last, keys=" ".join(keys))
    defined = "".join(
        f'<text id="{name}" xml:space="preserve">{text}</text>' for text, name in names.items()
    )
    frames = "\n".join(groups)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + 52}" '
        f'width="{width}" height="{height + 52}" role="img" aria-label="A recorded terminal">\n'
        f"<style>{style}</style>\n<defs>{defined}</defs>\n"
        f'<rect width="100%" height="100%" rx="8" fill="#0d1117"/>\n'
        '<circle cx="20" cy="18" r="6" fill="#ff5f56"/>'
        '<circle cx="40" cy="18" r="6" fill="#ffbd2e"/>'
        '<circle cx="60" cy="18" r="6" fill="#27c93f"/>\n'
        f'<svg x="12" y="36" width="{width - 24}" height="{height + 6}">'
        f'<g id="film" transform="translate(0 {last})">\n{frames}\n</g></svg>\n</svg>\n'
    )


def main() -> None:
    """Record, and write the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", type=Path, default=PAGE)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="deeplink_") as folder:
        shutil.copy(PROGRAM, Path(folder, "train.py"))
        film = record(Path(folder))
    options.output.write_text(svg(film), "utf-8")
    size = options.output.stat().st_size
    print(f"{options.output}: {film.now:.1f} s, {len(film.frames)} frames, {size // 1024} KiB")


if __name__ == "__main__":
    main()
