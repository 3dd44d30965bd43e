"""The tests find `execution.py`, which stands beside them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
