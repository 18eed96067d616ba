# SPDX-License-Identifier: LGPL-2.1-or-later
"""The manual pages name all that they are about: a member, error or setting that is added without them fails here."""

import pathlib
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET

import pytest

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
MAN = TOP / "man"


def text(page):
    return re.sub(r"\\f[BIRP]", "", (MAN / page).read_text().replace("\\-", "-"))


def missing(words, page):
    content = text(page)
    return [w for w in words if not re.search(rf"(?<![A-Za-z_]){re.escape(w)}(?![A-Za-z_])", content)]


def test_members_of_the_bus():
    for interface in ("Manager", "Run", "Agent", "Operation"):
        tree = ET.parse(TOP / f"dbus/org.agentd1.{interface}.xml")
        members = [e.get("name") for kind in ("method", "signal", "property") for e in tree.iter(kind)]
        assert members and not missing(members, "org.agentd1.5")


def test_errors():
    names = re.findall(r'"org\.agentd1\.Error\.(\w+)"', (TOP / "lib/bus/bus-error.h").read_text())
    assert names and not missing(names, "org.agentd1.5")


@pytest.mark.parametrize("file", ["agentd.conf", "bridge.conf"])
def test_settings(file):
    """Each in the section where it is read from, written as there: names of sections are compared letter by letter."""
    parts = re.split(r"^\[(\w+)\]$", (TOP / "packaging" / file).read_text(), flags=re.M)[1:]
    sections = {s: re.findall(r"^#?(\w+)=", body, re.M) for s, body in zip(parts[::2], parts[1::2])}
    manual = re.split(r"^\.SH (.+)$", text(f"{file}.5"), flags=re.M)[1:]
    described = dict(zip(manual[::2], manual[1::2]))
    assert [f"[{s}]" for s in sections] == [s for s in described if s.startswith("[")]
    for section, keys in sections.items():
        assert keys and all(re.search(rf"(?<!\w){k}=", described[f"[{section}]"]) for k in keys), section


@pytest.mark.parametrize("source,page", [("daemons/agentd/definition.c", "agent-definition.5"),
                                         ("lib/service/service.c", "agent-service.5")])
def test_keys_of_definitions(source, page):
    """The tables from which the documents are read: { "key", type, function, offset, mandatory }."""
    keys = set(re.findall(r'^\s*\{ "([a-z_]+)", _?SD_JSON_', (TOP / source).read_text(), re.M))
    assert len(keys) > 5 and not missing(keys, page)


@pytest.mark.skipif(not shutil.which("mandoc"), reason="mandoc is not installed")
@pytest.mark.parametrize("page", sorted(p.name for p in MAN.glob("*.[1-8]")))
def test_lint(page):
    out = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", MAN / page], capture_output=True, text=True, check=False)
    assert out.stdout + out.stderr == ""


def test_variables():
    """Of the environment, those that are ours: each is in some manual page."""
    asked = {m for d in ("bridge", "daemons", "lib") for p in (TOP / d).rglob("*.c")
             for m in re.findall(r'getenv\("(AGENTD?_\w+)"\)', p.read_text())}
    assert {"AGENTD_LOG_LEVEL", "AGENTD_PAGER"} <= asked
    assert not [v for v in asked if not any(v in p.read_text() for p in MAN.glob("*.[1-8]"))]


def test_all_are_installed():
    listed = set(re.findall(r"'([\w.-]+\.[1-8])'", (MAN / "meson.build").read_text()))
    assert listed == {p.name for p in MAN.glob("*.[1-8]")}


def test_readme_installs_what_the_build_needs():
    """The packages that the README tells to install are of those that all of this is built and tested with; and none that is
    compiled with is left out."""
    recipe = re.search(r"^ROOT_PACKAGES=\((.*?)^\)", (TOP / "tests/machine/recipes.sh").read_text(), re.M | re.S)[1].split()
    told = " ".join(re.findall(r"# apt-get install --no-install-recommends ((?:.*\\\n)*.*)", (TOP / "README.md").read_text()))
    told = set(told.replace("\\", " ").split())
    assert told and told <= set(recipe)
    assert {p for p in recipe if p.endswith("-dev")} - {"libc6-dev", "libclang-rt-dev"} <= told


def test_hacking_names_what_is_there():
    """Files that HACKING.md sends its reader to; each folder of code is in its table."""
    content = (TOP / "HACKING.md").read_text()
    named = set(re.findall(r"`(?:[\w-]+/)*([a-z0-9_-]+\.(?:c|h|cjs|mjs|py))`", content))
    there = {p.name for d in ("bridge", "daemons", "lib", "runner", "tests") for p in (TOP / d).rglob("*.*")}
    assert len(named) > 30 and named <= there, named - there
    folders = {p.parent.relative_to(TOP).as_posix() for d in ("bridge", "daemons", "lib") for p in (TOP / d).rglob("*.c")}
    assert not [f for f in folders if f"`{f}`" not in content]
