# SPDX-License-Identifier: Apache-2.0
"""Documentation: links lead somewhere, every page is listed."""

import re

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def pages(root):
    found = sorted(root.glob("*.md")) + sorted((root / "docs").rglob("*.md"))
    found += sorted((root / "examples").rglob("*.md"))
    assert len(found) > 5
    return found


def anchors(text):
    """As a forge makes them of headings."""
    made = set()
    for line in re.sub(r"^```.*?^```", "", text, flags=re.M | re.S).splitlines():
        m = re.match(r"#+\s+(.*)", line)
        if m:
            title = re.sub(r"[^\w\s-]", "", m.group(1).lower())
            made.add(re.sub(r"\s", "-", title.strip()))
    return made


def test_links_lead_somewhere(root):
    bad = []
    for page in pages(root):
        text = re.sub(r"`[^`\n]*`", "", page.read_text())
        for target in LINK.findall(text):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path) if path else page
            if not file.exists():
                bad.append(f"{page.name}: {target}")
            elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
                bad.append(f"{page.name}: {target}: no such heading")
    assert bad == []


def test_every_page_is_in_the_index(root):
    index = (root / "docs" / "index.md").read_text()
    names = [p.relative_to(root / "docs").as_posix() for p in sorted((root / "docs").rglob("*.md"))]
    assert [n for n in names if n != "index.md" and f"({n})" not in index] == []


def test_the_project_speaks_of_itself_alone(root):
    """No names of hosts or tools of whoever built it."""
    bad = []
    for page in pages(root):
        for number, line in enumerate(page.read_text().splitlines(), 1):
            if re.search(r"\blocalhost:\d+/|\bissue #?\d+\b|\bsandbox\b", line, re.I):
                bad.append(f"{page.name}:{number}")
    assert bad == []
