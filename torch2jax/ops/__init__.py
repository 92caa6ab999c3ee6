"""The rules, one file for each family of PyTorch's documentation. Importing this package registers them."""

from . import elementwise as elementwise
from . import mutation as mutation
from . import values as values
from . import views as views
