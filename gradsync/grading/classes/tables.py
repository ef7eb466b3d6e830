"""Read the CSV files that staff write, in a text editor or a spreadsheet."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from gradsync.errors import UnusableInput


class TableError(UnusableInput):
    """A CSV file can't be used; the text names the line and what to do."""

    def __init__(self, text: str, problem: str = "") -> None:
        super().__init__(text)
        self.problem = problem or text  # without the file and what to do


def errors_text(path: Path, problems: Sequence[str]) -> str:
    """Return a text on several errors of a file."""
    lines = "".join(f"\n  {problem}" for problem in problems)
    return f"{path} has {len(problems)} errors. Correct them and run again:{lines}"


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a CSV file, with its cells by column."""

    path: Path
    line: int
    cells: dict[str, str]

    def __getitem__(self, column: str) -> str:
        """Return a cell without spaces around it; "" if the file has no such column."""
        return self.cells.get(column, "")

    def number(self, column: str) -> float:
        """Return a cell as a number.

        Raises:
            TableError: it is not a finite number.
        """
        try:
            number = float(self[column].replace(",", "."))
        except ValueError:
            number = float("nan")
        if abs(number) < float("inf"):
            return number
        raise self.error(f"{column} must be a number, not {self[column]!r}")

    def error(self, problem: str) -> TableError:
        place = f"line {self.line}: {problem}."
        return TableError(f"{self.path}, {place} Correct it and run again.", place)


def read_table(path: Path, required: Sequence[str]) -> Iterator[Row]:
    """Yield the lines of a CSV file that are not empty; columns may be in any order.

    Commas or semicolons separate the cells, because some spreadsheets write semicolons.

    Raises:
        TableError: the file can't be read, or lacks a required column.
    """
    text = _text(path)
    header = text.split("\n", 1)[0]
    delimiter = ";" if header.count(";") > header.count(",") else ","
    reader = csv.reader(StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        columns = [name.strip().lower() for name in next(reader, [])]
        if missing := [name for name in required if name not in columns]:
            raise TableError(
                f"{path} has no column {missing[0]!r} in its first line, which must name the "
                f"columns: {','.join(required)}."
            )
        for cells in reader:
            if len(cells) > len(columns):
                raise TableError(
                    f"{path}, line {reader.line_num}: it has {len(cells)} cells, but the first "
                    f"line has {len(columns)}. Put texts that contain a {delimiter} into quotes."
                )
            if any(cell.strip() for cell in cells):
                row = dict(zip(columns, (cell.strip() for cell in cells), strict=False))
                yield Row(path, reader.line_num, row)
    except csv.Error as problem:
        raise TableError(f"{path}, line {reader.line_num}: {problem}.") from None


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise TableError(f"{path} is not UTF-8 text. Save it as CSV in UTF-8.") from None
    except OSError as problem:
        raise TableError(f"{path} can't be read: {problem.strerror}.") from None
