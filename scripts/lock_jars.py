"""Write totalorder/data/jars.toml: resolve the roots below with Ivy and note size and SHA-256 of every jar.

Run it (`make lock-jars`) after a change of version, and read the difference before it is committed. The Spark set
leaves out whatever pyspark ships itself, in its own version: two versions of one library on a class path are a riddle.
"""

import re
import sys
import tempfile
from pathlib import Path

import pyspark

from totalorder.jars import JAR_SETS, run_ivy, sha256_of

ROOTS = {
    "spark": [
        ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
        ("io.delta", "delta-spark_4.2_2.13", "4.4.0"),
    ],
    "broker": [
        ("org.apache.kafka", "kafka_2.13", "4.1.1"),
        # The binding of slf4j 1.7, which Kafka logs to, in the version of the log4j-core that Kafka brings.
        ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.24.3"),
    ],
    "fastfs": [("com.globalmentor", "hadoop-bare-naked-local-fs", "0.1.0")],
}

# Declared by Delta and its parts, and not needed: the first two by nothing at run time (delta-kernel-api shades its
# own copy of the first; the second holds annotations), the third by a RoaringBitmap older than pyspark's.
LEFT_OUT = {"jackson-datatype-jdk8", "javax.annotation-api", "shims"}

# hadoop-bare-naked-local-fs asks for a whole Hadoop, which pyspark has.
WITHOUT_DEPENDENCIES = {"fastfs"}

PYSPARK_JARS = Path(pyspark.__file__).parent / "jars"

_SEPARATOR = "!!"


def main() -> None:
    target = Path(__file__).resolve().parent.parent / "totalorder" / "data" / "jars.toml"
    sections = [_section(jar_set) for jar_set in JAR_SETS]
    target.write_text("# Written by scripts/lock_jars.py.\n" + "".join(sections), encoding="utf-8")
    print(f"Wrote {target}", file=sys.stderr)


def _needed(jar_set: str, path: Path) -> bool:
    name = path.stem.split(_SEPARATOR)[1]
    shipped_by_pyspark = any(
        re.match(re.escape(name) + r"-\d", file.name) for file in PYSPARK_JARS.glob(f"{name}-*.jar")
    )
    return name not in LEFT_OUT and not (jar_set == "spark" and shipped_by_pyspark)


def _section(jar_set: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "jars"
        run_ivy(
            ROOTS[jar_set],
            into,
            home=Path(folder) / "ivy",
            transitive=jar_set not in WITHOUT_DEPENDENCIES,
            pattern=f"[organisation]{_SEPARATOR}[artifact]{_SEPARATOR}[revision].[ext]",
            on_line=lambda line: print(line, end="", file=sys.stderr),
        )
        rows = [_row(path) for path in sorted(into.glob("*.jar")) if _needed(jar_set, path)]
    return "".join(f"\n[[{jar_set}]]\n{row}" for row in rows)


def _row(path: Path) -> str:
    organisation, name, version = path.stem.split(_SEPARATOR)
    return (
        f'organisation = "{organisation}"\nname = "{name}"\nversion = "{version}"\n'
        f'size = {path.stat().st_size}\nsha256 = "{sha256_of(path)}"\n'
    )


if __name__ == "__main__":
    main()
