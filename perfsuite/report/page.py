"""Pages: templates rendered to one text each, with the style sheet and the script that all pages share.

A page is complete in itself. Its content security policy lets a browser load nothing, and run only the script whose
hash it names.
"""

import base64
import hashlib
import importlib.resources
import math
import re
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from perfsuite.measure.words import number, percent, plural

_TEMPLATES = importlib.resources.files("perfsuite.report").joinpath("templates")


def render(template: str, **values: Any) -> str:
    """A page: `template` is a file of `templates/` that extends `base.html`. Every value is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_source),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = _source("page.js")
    environment.globals |= {
        "script": Markup(script),
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "style": Markup(_source("style.css")),
        "infinity": math.inf,
    }
    environment.filters |= {
        "breakable": breakable,
        "css": lambda verdict: verdict.replace(" ", "-"),
        "number": number,
        "path": quote,
        "percent": percent,
        "plural": plural,
    }
    return environment.get_template(template).render(**values)


def breakable(name: str) -> Markup:
    """A test's id that may be broken between its words."""
    return Markup("<wbr>").join(re.split(r"(?<=[/_:])(?![/_:])", name))  # it escapes the parts


def _source(name: str) -> str:
    # With the line ends that the hash of the script was taken with, whatever the checkout made of them.
    return "\n".join(_TEMPLATES.joinpath(name).read_text(encoding="utf-8").splitlines()) + "\n"
