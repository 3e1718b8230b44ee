"""The docs site has every page in its navigation, pictures are as their scripts draw them, and the README's figures are
those of the benchmarks."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "pictures"
ROOT_PAGES = {"CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, PICTURES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(PICTURES))
    return script("figures")


def test_each_page_is_in_the_navigation_once() -> None:
    """`make docs-build` fails otherwise; decisions are added by the hook."""
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    named = re.findall(r"([\w/-]+\.md)$", navigation, re.MULTILINE)
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(named) == sorted(
        ROOT_PAGES | {page for page in pages if not re.match(r"decisions/0", page)}
    )


def test_llms_txt_leads_to_pages() -> None:
    """Its form is https://llmstxt.org's: a title, a summary, lists of links."""
    text = (ROOT / "docs" / "llms.txt").read_text()
    assert text.startswith("# kafka-ds\n\n> ")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 20
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []


@pytest.mark.parametrize("index", ["README.md", "llms.txt"])
def test_every_page_of_the_site_is_in_the_list_of_pages(index: str) -> None:
    """Decisions have a list of their own; files above docs/ are GitHub's."""
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    pages = set(re.findall(r"(\S+\.md)$", nav, re.MULTILINE)) - {"README.md"}
    pages = {each for each in pages if (ROOT / "docs" / each).exists()}
    linked = set(re.findall(r"\]\(([^)#]+\.md)", (ROOT / "docs" / index).read_text()))
    assert len(pages) > 40
    assert pages - {"decisions/README.md"} <= linked


def test_the_figures_of_the_readme_are_those_of_the_benchmarks(figures: ModuleType) -> None:
    readme = figures.README.read_text()
    assert readme == figures.rendered(readme, figures.PAGE.read_text()), (
        "run: python docs/pictures/figures.py"
    )


def test_another_figure_on_the_page_is_another_in_the_readme(figures: ModuleType) -> None:
    page = figures.PAGE.read_text()
    other, found = re.subn(
        r"\| produce, 1 KiB \| \S+ \|", "| produce, 1 KiB | 0.50 |", page, count=1
    )
    assert found
    assert "| produce, 1 KiB | 0.50 × |" in figures.table(other)
    with pytest.raises(KeyError):
        figures.table(page.replace("| count, `scan()` |", "| counting |"))


def test_the_pictures_are_as_they_are_drawn(figures: ModuleType) -> None:
    draw = script("draw")
    assert {path.name for path in PICTURES.glob("*.svg")} == draw.PICTURES.keys()
    for name, drawn in draw.PICTURES.items():
        assert (PICTURES / name).read_text() == drawn(), "run: python docs/pictures/draw.py"


def test_the_site_needs_no_package_of_the_product() -> None:
    wanted = (ROOT / "docs" / "site" / "requirements.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[\w-]+==[\w.]+", line) for line in wanted if line[0] != "#")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = sum(project["optional-dependencies"].values(), project["dependencies"])
    assert not [name for name in extras if name.startswith("mkdocs")]
