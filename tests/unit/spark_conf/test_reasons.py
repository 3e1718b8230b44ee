"""Of what Spark says of an error, the line that a person needs."""

import pytest

from spark_conf.reasons import reason

OURS = "kafka_ds.errors.OptionError: option 'lake' (data/lak): has no tables"
FRAMES = f'Traceback (most recent call last):\n  File "/x/plan.py", line 11, in plan\n    raise it\n{OURS}'
STACK = "\n\tat java.base/java.lang.Thread.run(Thread.java:840)\n\nDriver stacktrace:\n\tat x.Y.z(Y.scala:1)"
READ = "[PYTHON_DATA_SOURCE_ERROR] Failed to generate Python data source read partitions: "
ABORTED = (
    "An error occurred while calling o9.save.\n: org.apache.spark.SparkException: Job aborted due to stage failure: "
    "Task 0 in stage 5.0 failed 1 times, most recent failure: Lost task 0.0 in stage 5.0 (TID 6) (10.0.0.1 executor "
    "driver): "
)
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
        ("\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'. SQLSTATE: 42601 (line 1, pos 0)\n\n== SQL ==",
         "[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'. SQLSTATE: 42601 (line 1, pos 0)"),
        (f"{ABORTED}a.B: no file{STACK}", "a.B: no file"),
        ("\n \n", "RuntimeError"),
        ("no more", "no more"),
        ("", "RuntimeError"),
    ],
)  # fmt: skip
def test_without_one_the_first_line_is(said: str, expected: str) -> None:
    assert reason(RuntimeError(said)) == expected
