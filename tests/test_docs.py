"""Every Python example of the README and of the docs runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: ``print(...)  # value``: a remark that starts with the printed value, which then has to be that.
PROMISE = re.compile(r"^\s*print\(.*\)\s+# (?P<value>True|False|[0-9.]+)", re.MULTILINE)


def examples(page: Path) -> str:
    """The Python blocks of a page as one program, each on the lines where the page has it."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * text.count("\n")
    for block in EXAMPLE.finditer(text):
        start = text.count("\n", 0, block.start(1))
        code = block[1].splitlines()
        lines[start : start + len(code)] = code
    return "\n".join(lines)


@pytest.mark.parametrize("page", [page for page in PAGES if examples(page).strip()], ids=lambda page: page.name)
def test_examples_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The blocks of one page run in order, in an empty folder, and print the values that their remarks promise."""
    program = examples(page)
    monkeypatch.chdir(tmp_path)
    exec(compile(program, str(page), "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out.splitlines()
    assert [value for value in PROMISE.findall(program) if value not in printed] == []


def test_links_lead_somewhere() -> None:
    """Every relative link of the pages names a file of the checkout."""
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)#:]+)[^):]*\)", page.read_text("utf-8"))]
    assert links
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []
