"""The probes of a partition -> tokenised rows and their manifest, out of core.

Contract: memory doesn't grow with the partition, its refusals and one manifest entry a work item apart. The same probes
give the same rows and digests, in whatever order and batches they come. Rows are ordered by length, then token hash,
then probe id, so that equal token sequences are adjacent and are one sequence of a work item.

Work is cut block by block (`cut.py`); only a sequence that by itself has more rows than a block takes is in several
blocks, and computed once in each.
"""

from resources.work_items.partition import TokenisedPartition, tokenise_partition
from resources.work_items.rows import ROWS

__all__ = ["ROWS", "TokenisedPartition", "tokenise_partition"]
