"""Settings of the documentation site: ``make docs`` writes build/site.

The source folder is the whole repository, so that links between pages, the README and
CONTRIBUTING.md are the same on the site and in a clone. Nothing is fetched from the network.
"""

import contextlib
import functools
import importlib
import inspect
import io
import os
import pathlib
import re
import tomllib

from docutils import nodes
from docutils.parsers.rst import Directive

from jaxformer.cli.arguments import parse_arguments
from jaxformer.version import __version__

PROJECT = pathlib.Path(__file__).parents[1]
PAGES = {"docs", "jaxformer", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"}
# Packages that have a list of their names; the first one that has a name documents it.
PUBLIC = (
    *("jaxformer", "jaxformer.nn", "jaxformer.search", "jaxformer.models", "jaxformer.config"),
)
# Pages or folders whose text the search leaves out, since they mention everything.
NOT_SEARCHED = ("CHANGELOG", "docs/LOG", "docs/log/")
TRANSLATED = ".zh-CN"  # neither are pages with this ending searched

os.environ["COLUMNS"] = "88"  # width of --help

project = "jaxformer"
author = "the jaxformer authors"
version = release = __version__
root_doc = "docs/index"
exclude_patterns = [path.name for path in PROJECT.iterdir() if path.name not in PAGES]
exclude_patterns.append("docs/claims")  # The outputs of commands, which pages include.
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]

nitpicky = True
highlight_language = "none"
html_theme = "furo"
html_title = f"jaxformer {release}"
html_copy_source = False
# Links to the source of each page, if pyproject.toml has an address of the repository.
metadata = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
if "urls" in metadata:
    html_theme_options = {
        "source_repository": metadata["urls"]["Repository"],
        "source_branch": "main",
        "source_directory": "",
    }
html_show_copyright = False
myst_heading_anchors = 4
napoleon_custom_sections = [("Attributes", "params_style")]
autodoc_default_options = {
    "members": True,
    # All but what these classes, and the ones that they derive from, have.
    "inherited-members": "Module,Algorithm,ModelConfig,DataConfig,FitConfig,BaseException,tuple",
    "member-order": "bysource",
    "exclude-members": "setup",
    "special-members": "__call__",
}
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80


@functools.cache
def public_names() -> dict[str, str]:
    """Returns the public name of each object, by the place where it is defined."""
    names: dict[str, str] = {}
    for package in map(importlib.import_module, PUBLIC):
        for name in package.__all__:
            value = getattr(package, name)
            place = f"{value.__module__}.{value.__qualname__}"
            if place.startswith("jaxformer."):  # Aliases of types are of other packages.
                names.setdefault(place, f"{package.__name__}.{name}")
    return names


class CommandHelp(Directive):
    """The --help of a command, as ``jaxformer COMMAND --help`` prints it."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.suppress(SystemExit):
            parse_arguments([self.arguments[0], "--help"])
        text = output.getvalue()
        return [nodes.literal_block(text, text, language="none")]


def shorten_signature(app, what, name, value, options, signature, returned):
    """Leaves out the arguments that every linen module has."""
    if signature:
        signature = re.sub(r"(, )?parent: .*, name: str \| None = None", "", signature)
    return signature, returned


def skip_field(app, what, name, value, skip, options):
    """Leaves out fields, which the section "Attributes" of a docstring describes."""
    kinds = (property, staticmethod, classmethod)
    field = what == "class" and not inspect.isroutine(value) and not isinstance(value, kinds)
    return skip or field


def link_to_public_name(app, env, node, text):
    """Links a definition to the public name that documents it; other code is only named.

    ``tests/unit/test_references.py`` checks that all names in docstrings exist.
    """
    if node.get("refdomain") != "py":
        return None
    names, place, member = public_names(), node["reftarget"], ""
    if place not in names:
        place, _, member = place.rpartition(".")
    if place not in names:
        return text
    target = f"{names[place]}.{member}".rstrip(".")
    arguments = (env, node["refdoc"], app.builder, node["reftype"], target, node, text)
    return env.domains["py"].resolve_xref(*arguments) or text


def leave_out_of_search(app, env):
    """Marks pages as Sphinx's field ``:nosearch:`` would, which GitHub would show."""
    for page in env.found_docs:
        if page.startswith(NOT_SEARCHED) or page.endswith(TRANSLATED):
            env.metadata[page]["nosearch"] = ""


def wrap_commands(app, page, template, context, doctree):
    """Wraps the long lines of commands, but not after the hyphens of options; Python scrolls."""
    style = ".highlight-console pre, .highlight-sh pre, .highlight-none pre {white-space: pre-wrap}"
    style += ".whole {display: inline-block; max-width: 100%; overflow-wrap: anywhere}"
    context["metatags"] = context.get("metatags", "") + f"<style>{style}</style>"
    option, whole = r"(?<=[\s>])--[\w.-]+(?:=[^\s<]+)?", r'<span class="whole">\g<0></span>'
    parts = re.split(r"(?s)(<(?:pre|code)\b.*?</(?:pre|code)>)", context.get("body", ""))
    parts[1::2] = [re.sub(option, whole, code) for code in parts[1::2]]
    context["body"] = "".join(parts)


def write_start_page(app, error):
    """The start page of the folder, which leads to this folder's index."""
    page = '<meta http-equiv="refresh" content="0; url=docs/index.html">'
    (pathlib.Path(app.outdir) / "index.html").write_text(page, encoding="utf-8")


def setup(app):
    """Registers what this file defines."""
    app.add_directive("command-help", CommandHelp)
    app.connect("autodoc-process-signature", shorten_signature)
    app.connect("autodoc-skip-member", skip_field)
    app.connect("missing-reference", link_to_public_name)
    app.connect("env-check-consistency", leave_out_of_search)
    app.connect("html-page-context", wrap_commands)
    app.connect("build-finished", write_start_page)
