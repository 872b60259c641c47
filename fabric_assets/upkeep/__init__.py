"""What is to be run, and run again: which probe sets are there, what arrived, what is missing or stale, what died.

`watch` finds probe files, `registration` makes them partitions and takes them out, `registered` reads them again;
`staleness` says which partitions lack vectors and `backfills` starts those; `dead_runs` ends what was killed.
"""
