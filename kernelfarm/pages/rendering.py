"""Fills the templates: everything is escaped, and only our style and script may act.

Templates, style and script are files in `kernelfarm/pages/assets`. The policy of a page names its
style and script by their SHA-256, so no other text of the page can run or change its look, and the
page loads nothing.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources

from jinja2 import BaseLoader, Environment, StrictUndefined, TemplateNotFound

_ASSETS = resources.files("kernelfarm.pages") / "assets"


class _Assets(BaseLoader):
    """Reads templates of this package, also from a zip archive."""

    def get_source(self, environment: Environment, template: str) -> tuple[str, str, None]:
        """A template's text and name."""
        del environment
        try:
            return asset(template), template, None
        except FileNotFoundError as error:
            raise TemplateNotFound(template) from error


@cache
def asset(name: str) -> str:
    """A file of this package as text."""
    return (_ASSETS / name).read_text(encoding="utf-8")


def content_policy(script: str, *, form_action: str = "'none'") -> str:
    """The content security policy of a page with one script (an asset; empty: none)."""
    scripts = _hash(script) if script else "'none'"
    return (
        f"default-src 'none'; script-src {scripts}; style-src {_hash('style.css')};"
        f" base-uri 'none'; form-action {form_action}"
    )


def rendered(
    template: str, script: str = "", *, form_action: str = "'none'", **values: object
) -> str:
    """A page from a template and its values.

    Templates escape all values except our own style and script.
    """
    values |= {"style": asset("style.css"), "script": asset(script) if script else ""}
    policy = content_policy(script, form_action=form_action)
    text = _environment().get_template(template).render(policy=policy, **values)
    # Half of a surrogate pair, which an error may quote, has no place in UTF-8.
    return text.encode("utf-8", "replace").decode("utf-8")


@cache
def _environment() -> Environment:
    return Environment(
        loader=_Assets(),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _hash(name: str) -> str:
    digest = hashlib.sha256(asset(name).encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
