# Two images of one source: `broker` (no JVM), and `spark` (the source, a session with Delta, the SQL console).
#
#   docker build --target broker --tag kafka-ds-broker .
#   docker run --stop-timeout 120 --publish 9092:9092 --volume kafka-ds:/var/lib/kafka-ds kafka-ds-broker
FROM python:3.11-slim-bookworm AS base
ENV PYTHONUNBUFFERED=1 PATH=/opt/kafka-ds/bin:$PATH

# Packages are installed in images of their own, so that sources, pip and what it leaves behind are in no layer of the two.
FROM base AS source
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/kafka-ds
WORKDIR /src
COPY requirements.txt pyproject.toml README.md LICENSE ./
COPY kafka_ds kafka_ds
COPY broker broker
COPY spark_conf spark_conf

FROM source AS broker-packages
# What nothing here loads is left out: Arrow's own S3 and Flight (the store has its S3), headers, tests, a second zstd.
RUN pip install --constraint requirements.txt ".[broker]" && pip uninstall --yes pip setuptools \
    && cd /opt/kafka-ds/lib/python3*/site-packages \
    && rm -rf pyarrow/include pyarrow/includes pyarrow/tests pyarrow/*flight* pyarrow/*s3* numba/tests zstandard/_cffi*

# Compiled at the place where it will be installed, by the same Python; neither mypy nor the compiler is in the image.
FROM source AS compiled-modules
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN pip install --constraint requirements.txt ".[broker,compiled]"
RUN XDG_CACHE_HOME=/cache kafka-ds compile

FROM source AS spark-packages
RUN pip install --constraint requirements.txt ".[spark]" && pip uninstall --yes pip setuptools

FROM base AS broker
RUN useradd --uid 1000 --create-home kafka \
    && mkdir --parents /var/lib/kafka-ds /etc/kafka-ds && chown kafka /var/lib/kafka-ds
COPY --from=broker-packages /opt/kafka-ds /opt/kafka-ds
# For a broker that is given no file of its own.
COPY docs/operations/image.properties /etc/kafka-ds/image.properties
COPY --from=compiled-modules --chown=kafka /cache /home/kafka/.cache
USER kafka
WORKDIR /var/lib/kafka-ds
# Into the cache of the user who runs it.
RUN python -c "from broker.cleaner.loops import loops; from kafka_ds.topic.files import pages; from kafka_ds.records import kernel; \
    kernel.warm_up(); loops(); pages.loops()" \
    && (python -m kafka_ds.records.machine_code || echo "no machine code for produced records: the broker will check them slowly")
VOLUME /var/lib/kafka-ds
EXPOSE 9092 9404
STOPSIGNAL SIGTERM
ENTRYPOINT ["python", "-m", "broker"]
CMD ["/etc/kafka-ds/image.properties"]

FROM base AS spark
RUN apt-get update && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*
COPY --from=spark-packages /opt/kafka-ds /opt/kafka-ds
ENV KAFKA_DS_JARS=/opt/kafka-ds/jars
RUN python -m spark_conf.jars delta s3a spark-avro
ENTRYPOINT ["python", "-m", "spark_conf.console"]
