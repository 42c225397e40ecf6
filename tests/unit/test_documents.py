"""The documents hang together: links lead somewhere, and the index names every page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(([^)\s]+)\)")
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
KINDS = {"howto", "reference", "explanation", "adr"}


def anchors(page: Path) -> set[str]:
    """Return what GitHub makes of the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> list[str]:
    """Return the targets of a page's links, those to other sites left out."""
    return [link for link in LINK.findall(page.read_text("utf-8")) if "://" not in link]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    """To a file that exists, and to a heading in it."""
    broken = []
    for link in links(page):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_the_index_names_every_page() -> None:
    """A page that is not listed is not found; decision records are listed as a folder."""
    index = DOCS / "README.md"
    listed = {(DOCS / link.partition("#")[0]).resolve() for link in links(index)}
    pages = {page for page in DOCS.rglob("*.md") if page.parent.name != "adr"} - {index}
    assert {page.resolve() for page in pages} - listed == set()


def test_every_page_is_of_one_kind() -> None:
    """The index and the measurements aside, a page is in the folder of its kind."""
    assert {path.name for path in DOCS.iterdir() if path.is_dir()} == KINDS
    assert {path.name for path in DOCS.glob("*.md")} == {"README.md", "performance.md"}


def test_every_page_that_the_code_names_exists() -> None:
    """`docs/...` in code, units and build files."""
    listing = ["git", "ls-files", "--", ":!*.md"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    missing = set()
    for name in names.splitlines():
        try:
            text = (ROOT / name).read_text("utf-8")
        except (FileNotFoundError, UnicodeDecodeError):
            continue
        mentioned = re.findall(r"\bdocs/[\w/-]+\.md\b", text)
        missing |= {f"{name}: {page}" for page in mentioned if not (ROOT / page).exists()}
    assert missing == set()


def test_the_path_of_a_message_is_in_the_code() -> None:
    """Each file of ARCHITECTURE.md exists, and has the class that is named with it."""
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    named = re.findall(r"`([\w/]+\.py)`(?: `(\w+)`)?", text)
    assert len(named) > 20
    missing = []
    for file, name in named:
        path = ROOT / "edgehub" / file
        if not path.exists() or (name and f"\nclass {name}" not in path.read_text("utf-8")):
            missing.append((file, name))
    assert missing == []


def test_generated_parts_are_what_the_code_says() -> None:
    """Settings, metrics and help texts; `make docs` writes them."""
    command = [sys.executable, str(DOCS / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
