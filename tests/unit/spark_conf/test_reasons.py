"""Of what Spark says of an error, the line that a person needs."""

import pytest

from spark_conf.reasons import reason

OURS = "kafka_ds.errors.OptionError: option 'lake' (data/lak): has no tables"
FRAMES = f'Traceback (most recent call last):\n  File "/x/plan.py", line 11, in plan\n    raise it\n{OURS}'
STACK = "\n\tat java.base/java.lang.Thread.run(Thread.java:840)\n\nDriver stacktrace:\n\tat x.Y.z(Y.scala:1)"
READ = "[PYTHON_DATA_SOURCE_ERROR] Failed to generate Python data source read partitions: "
WORKER = "An exception was thrown from the Python worker:\n"


@pytest.mark.parametrize(
    "said",
    [
        f"{READ}{FRAMES}\n SQLSTATE: 38000",
        f"{WORKER}{FRAMES}{STACK}",
        f"{WORKER}{OURS}{STACK}",
        f"An error occurred while calling o79.load.\n: org.apache.spark.SparkException: {FRAMES}{STACK}",
    ],
)
def test_of_a_traceback_its_last_line_is_the_reason(said: str) -> None:
    assert reason(RuntimeError(said)) == "option 'lake' (data/lak): has no tables"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (f"{READ}{OURS}\n SQLSTATE: 38000", f"{READ}option 'lake' (data/lak): has no tables"),
        ("[NO_COLUMN] no x. SQLSTATE: 42703; line 1\n'Project ['x]", "[NO_COLUMN] no x. SQLSTATE: 42703; line 1"),
        (f"An error occurred while calling o1.load.\n: a.B: no file{STACK}", "a.B: no file"),
        ("no more", "no more"),
        ("", "RuntimeError"),
    ],
)  # fmt: skip
def test_without_one_the_first_line_is(said: str, expected: str) -> None:
    assert reason(RuntimeError(said)) == expected
