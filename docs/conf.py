"""How Sphinx builds the documentation: ``make docs``."""

import importlib.util
import pathlib
import pkgutil
import sys
import textwrap

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_extensions")]

from docutils import nodes  # noqa: E402

import chainer_compat  # noqa: E402, F401  (before Chainer, which autodoc imports)
from divisible import __version__  # noqa: E402

project = "divisible"
author = "the authors of divisible"
version = release = __version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "explore_page",
    "mathml",
    "old_programs",
    "paper_tables",
    "predicted_timeline",
    "schedule_tables",
    "wire_tables",
]
exclude_patterns = ["_build", "_extensions", "programs"]
# Docstrings put names in single backticks.
default_role = "py:obj"
# Options begin with two hyphens.
smartquotes = False

# PyTorch is an extra, which the reference of torch_layers does not need.
autodoc_mock_imports = [] if importlib.util.find_spec("torch") else ["torch"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True
autoclass_content = "class"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

html_math_renderer = "mathml"
# Diagrams, grids and tables of text: programs say what they are.
highlight_language = "none"
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_title = f"divisible {release}"
html_show_copyright = False
html_copy_source = False


def _skip_fields(app, what, name, member, skip, options):
    """Leaves out the fields of named tuples, which the class describes."""
    if "Alias for field number" in (getattr(member, "__doc__", None) or ""):
        return True
    return None


def _shorten_paths(app, doctree):
    """Names the files of a diff as they are called in the repository."""
    for block in doctree.findall(nodes.literal_block):
        if block.get("language") == "udiff":
            text = block.astext().replace(f"{app.srcdir}/", "docs/")
            block.rawsource, block.children = text, [nodes.Text(text)]


def _color_programs(app, doctree):
    """Colors what a page includes of a Python file."""
    for block in doctree.findall(nodes.literal_block):
        is_chosen = block.get("language", highlight_language) != highlight_language
        if block.get("source", "").endswith(".py") and not is_chosen:
            block["language"] = "python"


def _leave_out_modules(app, what, name, module, options, lines):
    """Leaves out the list of a package's modules, which is for whoever changes it."""
    if what != "module" or not hasattr(module, "__path__"):
        return
    known = {found.name for found in pkgutil.iter_modules(module.__path__)}
    starts = [i for i, line in enumerate(lines) if line.endswith("::")]
    for start in reversed(starts):
        end = start + 1
        while end < len(lines) and (not lines[end] or lines[end].startswith(" ")):
            end += 1
        block = textwrap.dedent("\n".join(lines[start + 1 : end])).split("\n")
        # Lines that go on with the one before are indented.
        names = {line.split()[0].rstrip(",") for line in block if line[:1].strip()}
        if names and names <= known:
            del lines[start:end]


def _escape_stars(app, context, lines):
    """Escapes stars in a command's help, as in ``*.json``."""
    lines[:] = [line.replace("*", r"\*") for line in lines]


def setup(app):
    """Connects what the extensions above do not cover."""
    app.connect("autodoc-skip-member", _skip_fields)
    app.connect("autodoc-process-docstring", _leave_out_modules)
    app.connect("doctree-read", _shorten_paths)
    app.connect("doctree-read", _color_programs)
    app.connect("sphinx-click-process-description", _escape_stars)
