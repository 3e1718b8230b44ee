# kafka-ds: everything that a checkout does. `make demo` and `make test` need Python >= 3.11 and nothing else of ours.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
KERNELS := $(VENV)/.compiled
SEEDS  ?= 200
LIVES  ?= 10
FIRST  ?= 0
SECONDS ?= 60
MINUTES ?= 60
SUITES ?=
SPARKS ?= 4.1.4 4.0.5
PYTHONS ?= 3.12 3.13
# Tests of one file run one after the other, so many files at once: on two cores three, since most of them wait for a
# process of theirs. What takes long comes first, many short ones fill the rest. Those of Spark have a process of their
# own beside them: one session for all of them, and PySpark changes py4j, by which others run Kafka's tools.
WORKERS ?= 3

# Each broker and each worker is a process that imports hundreds of modules: their bytecode is kept, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE
# Ours is PySpark's own, of the version that is pinned.
unexport SPARK_HOME

.PHONY: demo jars test test-slow test-compiled compiled bench sim sim-typed check-histories fuzz soak suites spark-versions python-versions package kubernetes lint docs docs-build collect format java clean help
.DEFAULT_GOAL := help

help:
	@echo "make .venv      set up: all packages into .venv, and the kernels compiled"
	@echo "make demo       end-to-end demo: produce 336,776 records, query them in Spark and Polars"
	@echo "make test       all tests that CI runs"
	@echo "make test-slow  those that take longer, too (Azure's emulator needs Node.js and npm)"
	@echo "make compiled   the broker's most used modules compiled by mypyc (a minute or two): this checkout's brokers use them"
	@echo "make test-compiled   unit, wire and integration tests with these"
	@echo "make lint       ruff, ruff format, mypy --strict, import contracts; make format mends what ruff can"
	@echo "make docs       the pages as a site at http://127.0.0.1:8000; docs-build builds it into build/site, warnings are errors"
	@echo "make bench      ratios to Apache Kafka and Spark's own Kafka source, in one run"
	@echo "make sim        clusters on virtual time under faults, and the bank: SEEDS=$(SEEDS) runs each"
	@echo "make sim-typed  typed tables of each format in random lives, with killed drivers and replays, against a model: LIVES=$(LIVES) from seed FIRST=$(FIRST), a minute or two each"
	@echo "make check-histories   what clients saw in ten minutes of a cluster's time under faults, judged by an independent checker: SEEDS=$(SEEDS)"
	@echo "make fuzz       coverage-guided fuzzing of what reads others' bytes: SECONDS=$(SECONDS) a target"
	@echo "make soak       mixed load with restarts, in which nothing may grow or be lost: MINUTES=$(MINUTES), FOLDER= to keep it"
	@echo "make suites     tests that others wrote, each suite to its end, what it needs brought into .cache; git: librdkafka (gcc, g++, make, too), confluent-kafka-python, karapace (Go, protoc, Python 3.12, too); Go: franz-go, kafka-go, sarama; Rust: rskafka. SUITES='sarama kafka': only these"
	@echo "make spark-versions  source, sink and typed tables with earlier PySparks, in environments of their own below .cache: SPARKS='$(SPARKS)'"
	@echo "make python-versions unit tests, source, sink and typed tables (PySpark 4.2 and 4.1) with other Pythons, found on PATH or in pyenv: PYTHONS='$(PYTHONS)'"
	@echo "make package         wheel and source archive in dist/, checked by twine, installed in an empty environment, and the demo run there"
	@echo "make kubernetes      the manifests by Kubernetes' schemas"
	@echo "make jars, java, collect   what the others need: jars for the tests, a Java runtime, the tests collected"
	@echo "make clean      remove .venv, .cache and what was built"

# Bytecode is made of what is imported, when it is.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile

# Every package is pinned in requirements.txt, dependencies of dependencies included. Spark, which has no wheel, is built
# while the others come, and not compressed, since it is unpacked at once: that is half of the time.
$(STAMP): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("kafka-ds needs Python 3.11 or newer; try make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	@grep -E '^(pyspark|py4j)==' requirements.txt > $(VENV)/spark.txt
	@grep -vE '^(pyspark|py4j)==' requirements.txt > $(VENV)/others.txt
	$(PIP) --config-settings=--build-option=--compression=stored $$(cat $(VENV)/spark.txt) & spark=$$!; trap "kill $$spark 2>/dev/null" INT TERM; $(PIP) -r $(VENV)/others.txt; others=$$?; wait $$spark && exit $$others
	$(PIP) --editable .
	@touch $@

$(KERNELS): $(STAMP)
	@echo "compiling the record kernels, once (some seconds)"
	$(BIN)/python -c 'from broker.cleaner.loops import loops; from kafka_ds.topic.files import pages; from kafka_ds.sink import batches as sink; from kafka_ds.records import kernel; kernel.warm_up(); loops(); pages.loops(); sink.loops()'
	$(BIN)/python -m kafka_ds.records.machine_code || echo "no machine code for produced records: the broker will check them slowly"
	@touch $@

.PHONY: .venv
.venv: $(KERNELS)

java:
	@sh spark_conf/java.sh > /dev/null

demo: $(KERNELS) java
	@JAVA_HOME="$$(sh spark_conf/java.sh)" $(BIN)/python -m tests.demo

# Brought before the tests begin: what the network takes is no test's time.
jars: $(STAMP) java
	@JAVA_HOME="$$(sh spark_conf/java.sh)" $(BIN)/python -m spark_conf.jars delta kafka-4.4 kafka kafka-clients kafka-tests kafka-request-tests kafka-streams spark-kafka spark-avro apicurio s3proxy s3a > /dev/null
	@JAVA_HOME="$$(sh spark_conf/java.sh)" $(BIN)/python -m tests.clients.suites --build kafka kafka-python kafka-requests kafka-streams spark-kafka trogdor $$(command -v go > /dev/null && echo franz-go kafka-go sarama)

PYTEST := JAVA_HOME="$$(sh spark_conf/java.sh)" $(BIN)/python -m pytest
SPARK_OUTPUT := $(VENV)/tests-of-spark.txt

# Both run to their end, whatever the other one finds; the output of Spark's follows. Whoever ends the others ends these,
# which take their own things down (tests/conftest.py).
test: jars $(KERNELS)
	@echo "tests/spark runs beside the others; until both have ended its output is in $(SPARK_OUTPUT)"
	@$(PYTEST) -m "not slow" --durations=25 -n 2 --dist loadfile --no-loadscope-reorder tests/spark > $(SPARK_OUTPUT) 2>&1 & spark=$$!; trap "kill $$spark 2>/dev/null" INT TERM; \
	$(PYTEST) -m "not slow" --durations=25 -n $(WORKERS) --dist loadfile --no-loadscope-reorder --ignore tests/spark; others=$$?; \
	wait $$spark; spark=$$?; echo "tests/spark:"; cat $(SPARK_OUTPUT); \
	echo "pytest has ended with status $$others, that of tests/spark with status $$spark"; [ $$others = 0 ] && [ $$spark = 0 ]

test-slow: jars $(KERNELS)
	@JAVA_HOME="$$(sh spark_conf/java.sh)" $(BIN)/python -m spark_conf.jars old-kafkas kafka-streams-4.4 > /dev/null
	$(PYTEST)

compiled: $(STAMP)
	$(BIN)/python -m broker.cli compile

# Those of Spark and the simulation find the same brokers, and are left to the interpreted ones.
test-compiled: jars $(KERNELS) compiled
	$(PYTEST) -p tests.compiled -m "not slow and not interpreted" -n $(WORKERS) --dist loadfile --no-loadscope-reorder tests/unit tests/wire tests/integration

bench: $(KERNELS) java
	JAVA_HOME="$$(sh spark_conf/java.sh)" $(BIN)/python -m tests.bench

sim: $(KERNELS)
	KAFKA_DS_SIM_SEEDS=$(SEEDS) $(BIN)/python -m pytest tests/unit/log/test_crashes.py tests/unit/log/test_fault_model.py tests/unit/coordinator/transaction/test_model.py tests/unit/coordinator/group/test_model.py tests/unit/controller/test_model.py tests/unit/replica/test_model.py tests/unit/compaction/test_model.py tests/integration/test_bank.py tests/sim

sim-typed: jars $(KERNELS)
	KAFKA_DS_SIM_FIRST=$(FIRST) KAFKA_DS_SIM_SEEDS=$(LIVES) $(PYTEST) tests/spark/test_pipelines_model.py

check-histories: $(KERNELS)
	$(BIN)/python -m tests.checker.simulated 0 $(SEEDS) --keep $(VENV)/histories

fuzz: $(KERNELS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r tests/fuzz/requirements.txt
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m tests.fuzz $(SECONDS)

soak: $(KERNELS)
	$(BIN)/python -m tests.soak $(MINUTES) $(FOLDER)

suites: jars $(KERNELS)
	JAVA_HOME="$$(sh spark_conf/java.sh)" $(BIN)/python -m tests.clients.suites $(SUITES)

spark-versions: jars $(KERNELS)
	JAVA_HOME="$$(sh spark_conf/java.sh)" $(BIN)/python -m tests.spark.versions $(SPARKS)

python-versions: jars $(KERNELS)
	JAVA_HOME="$$(sh spark_conf/java.sh)" $(BIN)/python -m tests.pythons $(PYTHONS)

# What the tests' environment has and the wheel forgot to ask for shows only where nothing else is installed.
package: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --target $(VENV)/package build==1.6.1 twine==7.0.0
	rm -rf dist build/package
	PYTHONPATH=$(VENV)/package $(BIN)/python -m build --outdir dist .
	PYTHONPATH=$(VENV)/package $(BIN)/python -m twine check --strict dist/*
	$(PYTHON) -m venv build/package
	build/package/bin/python -m pip install --quiet --disable-pip-version-check "$$(ls dist/*.whl)[broker]"
	cd build/package && bin/kafka-ds demo

# The manifests by Kubernetes' own schemas, which are too large to be a package of every checkout.
kubernetes: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --target $(VENV)/kubernetes kubernetes-validate==1.37.0
	PYTHONPATH=$(VENV)/kubernetes $(BIN)/python -m kubernetes_validate --kubernetes-version 1.31 --strict docs/operations/kubernetes/kafka-ds.yaml

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The site's generator has a folder of its own: packages of the product stay as they are.
DOCS := $(VENV)/docs
MKDOCS := NO_MKDOCS_2_WARNING=1 PYTHONPATH=$(DOCS) $(BIN)/python -m mkdocs

$(DOCS)/.installed: docs/site/requirements.txt $(STAMP)
	$(PIP) --target $(DOCS) --upgrade -r docs/site/requirements.txt
	@touch $@

docs: $(DOCS)/.installed
	$(MKDOCS) serve

docs-build: $(DOCS)/.installed
	$(MKDOCS) build --strict --quiet

# What no test can import is found before the first one runs, and the workers of the tests, which all begin by collecting
# them, find each file compiled.
collect: $(KERNELS)
	@$(BIN)/python -m pytest --collect-only -q > $(VENV)/collected.txt || { cat $(VENV)/collected.txt; exit 1; }

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .cache .demo build dist *.egg-info .mypy_cache .ruff_cache .hypothesis .import_linter_cache
