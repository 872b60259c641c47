"""Probe files -> a registered probe set, cut into shards -> the probes and refusals of one shard.

Contract: `register` reads the files once and writes the probe set's index; `read_shard` gives one `Probe` or `Refusal`
for every row, streaming, with memory that grows neither with the file nor with the row count. What is wrong with a file
as a whole is a `ProbeFileError`; what is wrong with a row is a refusal with a reason of `REASONS`.

What a row is: a line of a JSONL file that holds more than white space; a line of a text file, an empty one too; a row
of a Parquet file; a record of a CSV file after its header that is not a blank line. `source_row` is the 0-based number
of the line (JSONL, text), of the row (Parquet) or of the record after the header (CSV).
"""

from resources.probe_files.probe_set import ProbeFormat, ProbeSet, Shard, load_probe_set, shard_of
from resources.probe_files.probes import REASONS
from resources.probe_files.register import register
from resources.probe_files.shards import read_shard, survey_shard

__all__ = [
    "REASONS",
    "ProbeFormat",
    "ProbeSet",
    "Shard",
    "load_probe_set",
    "read_shard",
    "register",
    "shard_of",
    "survey_shard",
]
