"""The job for spark-submit: `spark-submit streaming/job.py --config conf/local.toml`.

It takes the flags of `totalorder sequence`. spark-submit hands signals to Java, not to Python: any stop is safe, since
the batch runs again, but the clean one is that of `totalorder sequence`. With a local master it listens on this machine
alone, unless `spark.driver.host`, `spark.driver.bindAddress` or SPARK_LOCAL_IP say otherwise.
"""

import sys

from totalorder.cli.app import main

if __name__ == "__main__":
    main(["sequence", *sys.argv[1:]])
