"""Shell: what mkdocs.yml cannot say: pages of the repository's root, links out of docs/, and no foreign host.

The pages are written for a reader of the repository. On the site a link to a file outside docs/ is left as text, and a
page that would load anything from another host fails the build: the site works without internet access.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
DECISIONS = ROOT / "docs" / "decisions"
ROOT_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|#)([^)\s]+)\)")
LOADED = re.compile(
    r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=[\"']?((?:https?:)?//[^\"' >]+)"
)


def on_config(config: Any) -> Any:
    """Each decision is in the navigation."""
    internals = next(entry["Internals"] for entry in config.nav if "Internals" in entry)
    decisions = next(entry["Decisions"] for entry in internals if "Decisions" in entry)
    decisions += [f"decisions/{path.name}" for path in sorted(DECISIONS.glob("0*.md"))]
    return config


def on_files(files: Any, config: Any) -> Any:
    for name in ROOT_PAGES:
        files.append(File.generated(config, name, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    source = page.file.src_uri
    folder = "" if source in ROOT_PAGES else posixpath.join("docs", posixpath.dirname(source))

    def settled(link: re.Match[str]) -> str:
        text, target = link.groups()
        path, mark, anchor = target.partition("#")
        found = posixpath.normpath(posixpath.join(folder, path))
        if found in ROOT_PAGES:
            inside = found
        elif found.startswith("docs/"):
            inside = found.removeprefix("docs/")
        else:
            return text
        relative = posixpath.relpath(inside, posixpath.dirname(source) or ".")
        return f"[{text}]({relative}{mark}{anchor})"

    return LINK.sub(settled, markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    foreign = LOADED.findall(output)
    if foreign:
        raise PluginError(f"{page.file.src_uri} would load {foreign[0]}")
    return output
