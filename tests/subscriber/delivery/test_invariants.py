"""Dear invariants of the machine: each is broken in its turn, and named."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from delivery_world import Feed, event, grant, one_event, positioned, src, stamped

from totalorder.sequencer import invariants
from totalorder.subscriber.delivery.machine import Delivery


