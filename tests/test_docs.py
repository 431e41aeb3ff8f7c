"""What the README and the docs show runs, prints what they say it prints, and leads somewhere.

A block ``python`` is an example; the blocks of a page run in order, as one program, in an empty folder.  A block
``text`` right behind it is what it prints, to the letter.  ``<!-- needs: gpu, NAME -->`` above an example says what it
cannot do without: it is then run by a test of its own, with the plain blocks of its page, and skipped without that.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

import matrix_interop as mi
from matrix_interop.cli import arguments
from matrix_interop.errors import DeviceUnavailableError
from matrix_interop.frameworks import registry
from matrix_interop.runtime import get_runtime

REPOSITORY = Path(__file__).resolve().parent.parent
DOCS = REPOSITORY / "docs"
PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    REPOSITORY / "CHANGELOG.md",
    *sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts),
]
EXAMPLE = re.compile(
    r"(?:^<!-- needs: (?P<needs>[^\n]*) -->\n)?^```python\n(?P<code>.*?)^```$(?:\n\n^```text\n(?P<printed>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)


class Example(NamedTuple):
    """One block: the line it starts on, its code, what it prints (None: not said) and what it needs."""

    line: int
    code: str
    printed: str | None
    needs: tuple[str, ...]


def examples(page: Path) -> list[Example]:
    """The examples of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Example(
            text.count("\n", 0, found.start("code")),
            found["code"],
            found["printed"],
            tuple(re.split(r",\s*", found["needs"])) if found["needs"] else (),
        )
        for found in EXAMPLE.finditer(text)
    ]


def programs() -> list[Any]:
    """A parameter for each page and each set of needs in it."""
    return [
        pytest.param(
            page, needs, id=" needs ".join(filter(None, [name_of(page), " and ".join(needs)])),
            marks=[pytest.mark.gpu] if "gpu" in needs else [],
        )
        for page in PAGES
        for needs in sorted({example.needs for example in examples(page)})
    ]  # fmt: skip


def name_of(page: Path) -> str:
    """The page, as the reports name it."""
    return page.relative_to(REPOSITORY).as_posix()


def skip_without(need: str) -> None:
    """Skip where an example's need is not there."""
    if need != "gpu":
        if importlib.util.find_spec(need) is None:
            pytest.skip(f"needs {need}")
        return
    try:
        get_runtime("cuda")
    except DeviceUnavailableError as error:
        pytest.skip(f"needs a GPU: {error}")


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a page registers ends with it."""
    before = dict(registry._registered)
    monkeypatch.setattr(registry, "_registered", dict(before))
    yield
    for name in registry._registered.keys() - before.keys():
        registry._adapters.pop(name, None)
    registry._by_type.clear()


@pytest.mark.usefixtures("own_registry")
@pytest.mark.parametrize(("page", "needs"), programs())
def test_examples_run(page: Path, needs: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of one page run in order and print what the page says."""
    for need in needs:
        skip_without(need)
    monkeypatch.chdir(tmp_path)
    program = ModuleType("__main__")  # a module, so that what pickles can find the classes of the page
    for example in examples(page):
        if not set(example.needs) <= set(needs):
            continue
        code = compile("\n" * example.line + example.code, str(page), "exec")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, vars(program))
        if example.printed is not None:
            assert printed.getvalue() == example.printed, f"{name_of(page)}, line {example.line}"


def test_the_pipeline_prints_what_the_docs_show(capsys: pytest.CaptureFixture[str]) -> None:
    """examples/pipeline.py runs on the host, and its page shows its output."""
    runpy.run_path(str(REPOSITORY / "examples" / "pipeline.py"))["main"]()
    assert capsys.readouterr().out in (DOCS / "pipeline.md").read_text(encoding="utf-8")


def test_links_lead_somewhere() -> None:
    """Every relative link of the pages names a file of the checkout and, with a #, a heading in it."""
    broken = []
    for page in PAGES:
        for link in re.findall(r"\]\(([^):]+)\)", page.read_text("utf-8")):
            path, _, heading = link.partition("#")
            target = page.parent / path if path else page
            if not target.exists() or (heading and heading not in anchors(target)):
                broken.append((name_of(page), link))
    assert broken == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the docs make them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def named_in_the_reference() -> set[str]:
    """What the reference sets in code, and the errors of its tree."""
    text = (DOCS / "reference.md").read_text("utf-8")
    return {*re.findall(r"`([\w.]+)", text), *re.findall(r"^(?:[├└]── )?(\w+Error)\b", text, re.MULTILINE)}


@pytest.mark.parametrize("room", ["", ".errors", ".io", ".search", ".memory", ".transfer", ".data"])
def test_the_reference_names_everything_public(room: str) -> None:
    """Each public name of a module has its line in the reference."""
    module = importlib.import_module(f"matrix_interop{room}")
    assert [name for name in module.__all__ if name not in named_in_the_reference()] == []


@pytest.mark.parametrize("kind", [mi.Matrix, mi.HostMatrix, mi.DeviceMatrix], ids=lambda kind: kind.__name__)
def test_the_reference_names_every_member_of_a_matrix(kind: type) -> None:
    """Each public attribute and method of the matrix classes stands in the reference."""
    assert [name for name in dir(kind) if name[0] != "_" and name not in named_in_the_reference()] == []


def test_the_reference_names_every_command() -> None:
    """Each command of the command line stands in the reference."""
    text = (DOCS / "reference.md").read_text("utf-8")
    assert [name for name in arguments._COMMANDS if f"`matrix-interop {name}" not in text] == []
