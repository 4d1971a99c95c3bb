"""The lineage of a domain: Delta tables of what happened, and the audits on them (`totalorder.sinks`)."""

import totalorder.streaming  # noqa: F401 (which looks at pyspark's version)
