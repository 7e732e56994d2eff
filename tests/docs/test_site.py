"""The documentation as a site, as far as that can be told without MkDocs, which `.ci/run` builds it with."""

import importlib.util
import inspect
import pkgutil
import re
import sys
import typing
import xml.etree.ElementTree as ET

import pytest
import yaml
from support.markdown_blocks import DOCS, ROOT

import perfsuite
from perfsuite.instruments import base
from perfsuite.measure.compiles import compiles


def load(name):
    """A module of `.ci/site`, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f".ci/site/{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


REFERENCE, LINKS = load("reference"), load("links")
ENTRIES = [entry for page in REFERENCE.PAGES.values() for entry in page.entries]
METHODS = {name: getattr(base.instrument_class(name), name) for name in base.METHODS}


def object_at(path):
    """The object of an entry. The site's tool sees the methods of `perf` where type checkers do."""
    method = path.removeprefix("perfsuite.Perf.")
    return METHODS[method] if method in METHODS else pkgutil.resolve_name(path)


OBJECTS = {entry.path: object_at(entry.path) for entry in ENTRIES}
CLASSES = {path: value for path, value in OBJECTS.items() if inspect.isclass(value)}


def own_classes(annotation):
    """Perfsuite's classes in an annotation, such as `Iterator[Compiles]`."""
    inside = [each for part in typing.get_args(annotation) for each in own_classes(part)]
    return [*inside, *([annotation] if getattr(annotation, "__module__", "").startswith("perfsuite.") else [])]


def not_in_reference(objects):
    return [value for value in objects if not any(value is each for each in OBJECTS.values())]


def test_every_public_name_is_in_the_reference():
    assert not not_in_reference(getattr(perfsuite, name) for name in perfsuite.__all__)


def test_every_method_of_the_fixtures_is_in_the_reference_under_the_name_that_tests_use():
    assert {"time", "warm", "record"} < METHODS.keys()
    headings = {entry.heading: entry.path for entry in ENTRIES}
    assert {f"perf.{name}": f"perfsuite.Perf.{name}" for name in METHODS}.items() <= headings.items()
    assert not not_in_reference([compiles.count, compiles.forbid])


def test_what_a_method_returns_is_in_the_reference():
    hints = {name: typing.get_type_hints(method) for name, method in METHODS.items()}
    assert [name for name, each in hints.items() if "return" not in each] == []
    returned = [each for hint in hints.values() for each in own_classes(hint["return"])]
    assert len(returned) > 20
    assert not not_in_reference(returned)


def test_what_is_not_in_the_reference_is_seen():
    assert own_classes(typing.Iterator[REFERENCE.Entry]) == []
    assert own_classes(list[perfsuite.Budget]) == [perfsuite.Budget]
    assert not_in_reference([perfsuite.Budget, compiles.observe]) == [compiles.observe]


@pytest.mark.parametrize("path", [path for path, value in OBJECTS.items() if inspect.isfunction(value)])
def test_a_function_of_the_reference_says_what_it_does(path):
    assert OBJECTS[path].__doc__


@pytest.mark.parametrize("path", CLASSES)
def test_a_class_of_the_reference_says_what_it_and_its_properties_are(path):
    own = [each for each in CLASSES[path].__mro__ if each.__module__.startswith("perfsuite.")]
    properties = {name: each for each in own for name, each in vars(each).items() if isinstance(each, property)}
    assert CLASSES[path].__doc__
    assert not [name for name, each in properties.items() if name[0] != "_" and not each.__doc__]


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without MkDocs' own tag."""


Loader.add_constructor("!ENV", lambda loader, node: None)
CONFIG = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)


def in_navigation(nav):
    for each in nav.values() if isinstance(nav, dict) else nav:
        yield from [each] if isinstance(each, str) else in_navigation(each)


def test_the_navigation_has_every_page():
    listed = list(in_navigation(CONFIG["nav"]))
    assert len(listed) == len(set(listed))
    pages = [
        *DOCS.rglob("*.md"),
        *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG", "SECURITY")),
    ]
    assert set(listed) == {LINKS.place_of(page) for page in pages} | set(REFERENCE.PAGES)


def test_links_lead_to_the_places_of_the_site():
    page = (
        "[a](../README.md#install) [b](time.md) ![c](../assets/picture.svg) [d](../no.md) [e](https://e.org/README.md)"
    )
    assert LINKS.relinked(page, DOCS / "instruments/new.md") == page.replace("../README.md", "../contents.md")
    page = "[a](../../README.md#install)\n```\n[b](../../README.md)\n```\n[c](../../pyproject.toml)"
    expected = "[a](../index.md#install)\n```\n[b](../../README.md)\n```\n[c](../source/pyproject.toml.md)"
    assert LINKS.relinked(page, DOCS / "instruments/new.md") == expected
    assert list(LINKS.targets(page, DOCS / "instruments/new.md")) == [ROOT / "README.md", ROOT / "pyproject.toml"]
    assert LINKS.place_of(ROOT / ".github/examples/perf-against.yml") == "source/github/examples/perf-against.yml.md"


def test_the_picture_has_its_colours_in_both_schemes():
    drawing = (DOCS / "assets/picture.svg").read_text(encoding="utf-8")
    ET.fromstring(drawing)
    colours = set(re.findall(r"var\((--\w+)\)", drawing))
    sets = re.findall(
        r"\.picture \{([^}]*--ink[^}]*)\}", drawing + (DOCS / "assets/site.css").read_text(encoding="utf-8")
    )
    assert len(sets) == 4, "light and dark, of the system and of the site"
    assert all(set(re.findall(r"(--\w+):", each)) == colours for each in sets)
