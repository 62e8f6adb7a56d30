"""verl imports this by `VERL_USE_EXTERNAL_MODULES`, before the plugin registers rows."""

from acpo.objectives import METHODS
from engines.own_row import OWN

METHODS[OWN.name] = OWN
