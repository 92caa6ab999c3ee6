"""How Sphinx makes the site of these pages: `python -m sphinx -W -b html docs site`."""

import datetime
import os
import sys
import tempfile
from importlib.metadata import version as _version_of
from pathlib import Path

project = "torch2jax"
author = "The torch2jax authors"
copyright = f"{datetime.date.today().year}, {author}"
version = release = _version_of("torch2jax")

sys.path.append(str(Path(__file__).parent / "_extensions"))
extensions = [
    "myst_nb",  # Markdown, and notebooks in it that run while the site is made
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "results",  # one list of all that was measured
    "site_search",  # what people type, and pages that the search leaves out
]
exclude_patterns = ["_build", "_extensions"]
templates_path = ["_templates"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
nb_output_stderr = "remove"  # bars of progress

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the signature has them in full, and the text says what they mean
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
default_role = "code"
suppress_warnings = ["config.cache"]

# Kernels of notebooks start with this: transformers imports torchvision, which need not load beside this PyTorch, and
# pages draw with benchmarks/.
_ipython = Path(tempfile.mkdtemp())
_startup = _ipython / "profile_default/startup/vision_operators.py"
_startup.parent.mkdir(parents=True)
_startup.write_text(
    "import sys\n"
    "from torch2jax.tools.models import define_vision_operators\n\n"
    f"sys.path.append({str(Path(__file__).parents[1])!r})\n"
    "define_vision_operators()\n"
)
os.environ["IPYTHONDIR"] = str(_ipython)
os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
os.environ["JAX_PLATFORMS"] = "cpu"

html_theme = "sphinx_book_theme"
html_title = "torch2jax"
html_logo = html_favicon = "_static/icon.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["filter.js"]
html_show_sphinx = False
html_domain_indices = False  # one module is no index; every name is in the index of names
maximum_signature_line_length = 80
html_copy_source = True  # a page can be downloaded, and a notebook run with jupytext
html_search_scorer = str(Path(__file__).parent / "_extensions/scorer.js")
html_sidebars = {"**": ["navbar-logo.html", "site-version.html", "search-button-field.html", "sbt-sidebar-nav.html"]}
html_theme_options = {
    "show_navbar_depth": 1,
    "navbar_persistent": [],
    "logo": {"text": "torch2jax"},
    "show_toc_level": 2,
    "home_page_in_toc": True,
    "use_download_button": True,
    "use_fullscreen_button": False,
    "navigation_with_keys": False,
    "show_prev_next": True,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_search_options = {"type": "default"}
