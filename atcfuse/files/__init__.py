"""All output files of a run appear whole, or none of them does.

Every file is written under a temporary name in its target's folder (so on the same filesystem), synced, and renamed
into place when the whole run has succeeded; the file marked `last` (the model) is renamed last, so that whoever waits
for it finds the others in place. A failure or an interrupt removes what was staged and puts back what was already
replaced; a power cut or `kill -9` leaves each file old or new. Two runs on one output never mix: the later whole write
wins.
"""

from atcfuse.files.staging import CHUNK, create, write_all, writing
from atcfuse.files.transaction import Handed, Transaction, remove_temporaries

__all__ = ["CHUNK", "Handed", "Transaction", "create", "remove_temporaries", "write_all", "writing"]
