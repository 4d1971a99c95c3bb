"""The lineage job for spark-submit: `spark-submit sinks/job.py --config conf/lineage.toml`.

It takes the flags of `totalorder lineage`. spark-submit hands signals to Java, not to Python: any stop is safe, since
the tables say where to go on, but the clean one is that of `totalorder lineage`.
"""

import sys

from totalorder.cli.app import main

if __name__ == "__main__":
    main(["lineage", *sys.argv[1:]])
