"""Rules of ``torch.nn.functional``."""

from . import activation as activation
from . import attention as attention
from . import convolution as convolution
from . import distance as distance
from . import dropout as dropout
from . import embedding as embedding
from . import linear as linear
from . import loss as loss
from . import normalization as normalization
from . import pooling as pooling
from . import recurrent as recurrent
from . import vision as vision
