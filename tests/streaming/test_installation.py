"""Variables of another installation of Spark, Python or Java: left out on a local master, else refused by name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from totalorder.errors import EnvironmentProblem
from totalorder.streaming import installation

FOREIGN = {
    "SPARK_HOME": "/nonexistent/spark-3.5",
    "SPARK_CONF_DIR": "/nonexistent/conf",
    "SPARK_LOCAL_IP": "203.0.113.7",
    "SPARK_REMOTE": "sc://nowhere",
    "PYSPARK_SUBMIT_ARGS": "--version",
    "PYSPARK_PYTHON": "/nonexistent/python",
    "PYSPARK_DRIVER_PYTHON": "jupyter",
    "PYSPARK_DRIVER_PYTHON_OPTS": "notebook",
    "JAVA_TOOL_OPTIONS": "-XX:+UseG1GC",
    "_JAVA_OPTIONS": "-XX:+UseSerialGC",
}


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without any of them, restored at the end."""
    for name in installation.LEFT_OUT:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return monkeypatch


def test_a_local_session_leaves_them_out_and_says_so_once(clean: pytest.MonkeyPatch) -> None:
    for name, value in FOREIGN.items():
        clean.setenv(name, value)
    with capture_logs() as logs:
        installation.prepare(local=True)
        installation.prepare(local=True)
    (line,) = logs
    assert line["variables"] == ", ".join(sorted(FOREIGN))
    own = installation.own_spark()
    assert {name: os.environ.get(name) for name in FOREIGN} == dict.fromkeys(FOREIGN) | {
        "SPARK_HOME": str(own),
        "PYSPARK_PYTHON": sys.executable,
    }
    assert (own / "bin" / "spark-submit").is_file()


def test_under_spark_submit_workers_are_of_the_drivers_python(clean: pytest.MonkeyPatch) -> None:
    clean.setenv("SPARK_HOME", "/given/by/spark-submit")
    clean.setenv("PYSPARK_PYTHON", "/nonexistent/python")
    with capture_logs() as logs:
        installation.leave_out(("PYSPARK_PYTHON",))
    assert [line["variables"] for line in logs] == ["PYSPARK_PYTHON"]
    assert os.environ["SPARK_HOME"] == "/given/by/spark-submit"


def test_what_leads_to_our_own_is_no_news(clean: pytest.MonkeyPatch) -> None:
    clean.setenv("SPARK_HOME", str(installation.own_spark()))
    clean.setenv("PYSPARK_PYTHON", sys.executable)
    clean.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    with capture_logs() as logs:
        installation.prepare(local=True)
    assert not logs


def test_a_cluster_keeps_what_can_be(clean: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = {
        "SPARK_HOME": str(installation.own_spark()),
        "SPARK_CONF_DIR": str(tmp_path),
        "PYSPARK_SUBMIT_ARGS": "--packages a:b:1 pyspark-shell",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "203.0.113.7",
    }
    for name, value in given.items():
        clean.setenv(name, value)
    installation.prepare(local=False)
    assert {name: os.environ[name] for name in given} == given
    assert "SPARK_LOCAL_IP=203.0.113.7" in installation.in_effect()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("SPARK_HOME", "/nonexistent", r"there is no bin/spark-submit"),
        ("SPARK_HOME", "OLD", r"its Spark is 3\.5\.1, and pyspark is 4\.2"),
        ("SPARK_CONF_DIR", "/nonexistent", "no such directory"),
        ("PYSPARK_SUBMIT_ARGS", "--version", "does not end with pyspark-shell"),
        ("PYSPARK_SUBMIT_ARGS", "'", "No closing quotation"),
        ("PYSPARK_PYTHON", "/nonexistent/python", "no such program"),
        ("PYSPARK_PYTHON", "PYTHON", r"it is Python 2\.7, and the driver is 3"),
        ("PYSPARK_PYTHON", "/bin/false", "that does not run"),
    ],
)
def test_on_a_cluster_what_cannot_be_is_named(
    clean: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str, says: str
) -> None:
    for folder, file in (("bin", "spark-submit"), ("jars", "spark-core_2.12-3.5.1.jar")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).touch()
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 2.7\n")
    python.chmod(0o755)
    clean.setenv(name, {"OLD": str(tmp_path), "PYTHON": str(python)}.get(value, value))
    with pytest.raises(EnvironmentProblem, match=rf"^{name}=.*{says}.*Correct {name}, or unset it"):
        installation.prepare(local=False)


COMMANDS = {
    "sequence": ["--topics", "a", "--checkpoint-dir", "NEW", "--bootstrap-servers", "127.0.0.1:1"],
    "lineage": ["--tables", "NEW", "--bootstrap-servers", "127.0.0.1:1"],
    "audit": ["--tables", "NEW"],
    "sql": ["--tables", "NEW", "SELECT 1"],
    "demo": [],
}


def command(name: str, new: Path, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of ours to its end."""
    program = Path(sys.executable).with_name("totalorder")
    arguments = [str(new) if argument == "NEW" else argument for argument in COMMANDS[name]]
    return subprocess.run(
        [program, name, *arguments, *flags],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | environment,
    )


@pytest.mark.parametrize(
    ("version", "told"), [("3.5.1", "is 3.5.1"), ("4.2.0", "is 4.2.0, and totalorder needs 4.2.1")]
)
@pytest.mark.parametrize("name", COMMANDS)
def test_another_pyspark_on_the_path_is_named_before_anything_is_made(
    name: str, version: str, told: str, tmp_path: Path
) -> None:
    other = tmp_path / "spark" / "python" / "pyspark"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("raise ImportError('of another version')")
    (other / "version.py").write_text(f'__version__: str = "{version}"\n')
    found = command(name, tmp_path / "new", PYTHONPATH=str(other.parent))
    assert found.returncode == 1
    assert f"the pyspark in {other} {told}" in found.stderr
    assert f"PYTHONPATH leads there: take {other.parent} out of it" in found.stderr
    assert "Traceback" not in found.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["sequence", "lineage"])
def test_a_variable_that_cannot_be_is_named_before_anything_is_made(name: str, tmp_path: Path) -> None:
    master = ("--master", "spark://127.0.0.1:1")
    found = command(name, tmp_path / "new", *master, SPARK_HOME="/nonexistent")
    assert found.returncode == 1
    assert "SPARK_HOME=/nonexistent: there is no bin/spark-submit. Correct SPARK_HOME" in found.stderr
    assert not (tmp_path / "new").exists()


IN_A_SESSION = """
import signal
import sys
from totalorder.sinks.session import start_delta_session
from totalorder.streaming.service import configure_logging
from totalorder.streaming.session import stop_session
from pyspark import SparkContext

configure_logging("json")
spark = start_delta_session("foreign", {"spark.driver.extraJavaOptions": sys.argv[1]})
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not pyspark's
print(spark.sparkContext.range(4, numSlices=2).map(lambda number: number + 1).sum())
java = SparkContext._gateway.proc
java.kill()
java.wait()
stop_session(spark)  # says what it could not do, and raises nothing
print("stopped", SparkContext._gateway)
"""


@pytest.mark.spark
def test_a_session_starts_in_any_environment_and_a_java_that_is_gone_can_be_stopped(tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text("spark.driver.extraJavaOptions -XX:NoSuchOption\n")
    (conf / "spark-env.sh").write_text("exit 3\n")
    found = subprocess.run(
        [sys.executable, "-c", IN_A_SESSION, "-XX:+UseParallelGC"],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | FOREIGN | {"SPARK_CONF_DIR": str(conf)},
    )
    assert found.stdout.splitlines() == ["10", "stopped None"], found.stderr
    assert "left out of the environment" in found.stderr
    assert "while stopping Spark" in found.stderr


@pytest.mark.spark
def test_a_java_that_does_not_start_is_told_in_its_own_words() -> None:
    found = subprocess.run(
        [sys.executable, "-c", IN_A_SESSION, "-javaagent:/nonexistent.jar"], capture_output=True, text=True, timeout=300
    )
    assert "EnvironmentProblem: Spark's Java did not start:" in found.stderr
    assert "Error opening zip file or JAR manifest missing : /nonexistent.jar" in found.stderr
