"""The lineage of a domain: Delta tables of what happened, and the audits on them (`totalorder.sinks`)."""
