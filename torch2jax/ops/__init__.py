"""The rules, one file for each family of PyTorch's documentation. Importing this package registers them."""

from . import nn as nn
from . import aten as aten
from . import conversion as conversion
from . import creation as creation
from . import elementwise as elementwise
from . import fft as fft
from . import histogram as histogram
from . import indexing as indexing
from . import linalg as linalg
from . import metadata as metadata
from . import mutation as mutation
from . import prims as prims
from . import products as products
from . import random as random
from . import reduction as reduction
from . import scan as scan
from . import shape as shape
from . import sorting as sorting
from . import special as special
from . import subscript as subscript
from . import values as values
from . import views as views
