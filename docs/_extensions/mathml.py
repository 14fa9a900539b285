"""Shows formulas as MathML, which browsers draw themselves: no script, no network.

::

    :math:`m + d - 1`

    .. math:: T = m + d - 1
       :label: turns
"""

from __future__ import annotations

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util.math import get_node_equation_number


def _inline(translator, node: nodes.math) -> None:
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def _block(translator, node: nodes.math_block) -> None:
    translator.body.append(translator.starttag(node, "div", CLASS="math"))
    if node["number"]:
        number = get_node_equation_number(translator, node)
        translator.body.append(f'<span class="eqno">({number})')
        translator.add_permalink_ref(node, "Link to this equation")
        translator.body.append("</span>")
    # How a block is asked for differs between versions of docutils.
    formula = tex2mathml(node.astext())
    translator.body.append(formula.replace("<math", '<math display="block"', 1))
    translator.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app) -> dict[str, bool]:
    """Registers the renderer with Sphinx, which ``html_math_renderer`` chooses."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
