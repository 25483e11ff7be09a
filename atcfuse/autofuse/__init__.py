"""Element-wise operators that no rule took, grouped into `FusedElementwise` nodes in time linear in the model."""

from atcfuse.autofuse.candidates import NAMES
from atcfuse.autofuse.fusions import Limits, find_fusions, kept_by_user, search
from atcfuse.autofuse.rule import RULE, with_autofuse
from atcfuse.autofuse.views import Moves, find_moves

__all__ = ["NAMES", "RULE", "Limits", "Moves", "find_fusions", "find_moves", "kept_by_user", "search", "with_autofuse"]
