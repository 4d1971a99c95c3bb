"""The lineage job's settings: TOML file < environment (`TOTALORDER_…`) < flags, as one typed and frozen model.

What the sequencer has too (domain, brokers, kafka, spark …) has the same name here, so one environment serves both.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from totalorder.config import ENV_PREFIX, Settings, load, make_settings


class LineageSettings(BaseSettings):
    """Everything that the lineage job can be told."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True, validate_default=True)

    tables: str = Field(min_length=1)
    """Root of the tables: a local directory (locked while the job runs) or a Hadoop URI."""
    domain: str = "totalorder"
    """The universe of order."""
    bootstrap_servers: str = "localhost:9092"
    payload: bool = False
    """Whether the table `events` gets the values of the events."""
    interval_s: float = Field(default=5.0, ge=0, le=86_400)
    """Interval of micro-batches; each makes a file in every table that it has rows for."""
    batch_records: int = Field(default=2_000, ge=1)
    """A micro-batch takes about this many Kafka records of cuts, stamps, grants and receipts at most."""
    retention_days: float = Field(default=30.0, ge=1, le=36_500)
    """`--compact` keeps files that the tables needed within so many days: for time travel and long queries. Less than a
    day could delete what the job is just writing."""
    broker_timeout_s: float = Field(default=15.0, gt=0, le=3_600)
    """How long a broker may take to answer before it counts as absent."""
    standstill_timeout_s: float = Field(default=300.0, ge=5, le=604_800)
    """How long nothing of the job may move while a batch is under way; then it ends, and says where it stood."""
    master: str = "local[2]"
    """Spark master, where spark-submit gives none."""
    log_format: Literal["console", "json"] = "console"
    kafka: dict[str, str] = {}
    """Passed to every Kafka client, in the names of the Java client, such as `security.protocol`."""
    spark: dict[str, str] = {}
    """Passed to Spark, such as `spark.driver.memory`."""

    @property
    def is_local(self) -> bool:
        """Whether the tables are a directory of this machine, and no URI of a shared store."""
        return "://" not in self.tables

    @property
    def root(self) -> str:
        """The root as Spark is to have it."""
        return str(Path(self.tables).absolute()) if self.is_local else self.tables

    def of_sequencer(self) -> Settings:
        """The part that the sequencer's settings have too, checked in the same way."""
        names = ("domain", "bootstrap_servers", "broker_timeout_s", "master", "log_format", "kafka", "spark")
        shared = {name: getattr(self, name) for name in names}
        return make_settings(topic_pattern="none", checkpoint_dir="none", **shared)


def load_lineage_settings(config: Path | None, flags: Mapping[str, Any]) -> LineageSettings:
    """Settings from a TOML file, the environment and flags, the later ones winning. Raises SettingsError."""
    settings = load(LineageSettings, config, flags, command="lineage")
    settings.of_sequencer()
    return settings
