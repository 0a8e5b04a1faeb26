import os
import sys
from pathlib import Path

import torch

# librosa compiles itself the first time it is used: half a minute in a new environment, unless the result may be slow
os.environ.setdefault("NUMBA_OPT", "0")
sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)
