# Two images of one source: `broker` (no JVM), and `spark` (the source, a session with Delta, the SQL console).
FROM python:3.11-slim-bookworm AS base
WORKDIR /opt/kafka-ds
COPY requirements.txt pyproject.toml README.md ./
COPY kafka_ds kafka_ds
COPY broker broker
COPY spark_conf spark_conf
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

FROM base AS broker
RUN pip install --constraint requirements.txt ".[broker]" \
    && useradd --system --uid 1000 --create-home kafka \
    && mkdir -p /var/lib/kafka-ds && chown kafka /var/lib/kafka-ds
USER kafka
# Into the cache of the user who runs it.
RUN python -c "from broker.cleaner.loops import loops; from kafka_ds.topic.files import pages; from kafka_ds.records import kernel; \
    kernel.warm_up(); loops(); pages.loops()" \
    && (python -m kafka_ds.records.machine_code || echo "no machine code for produced records: the broker will check them slowly")
VOLUME /var/lib/kafka-ds
EXPOSE 9092 9404
ENTRYPOINT ["python", "-m", "broker"]

FROM base AS spark
RUN apt-get update && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* \
    && pip install --constraint requirements.txt ".[spark]"
ENV KAFKA_DS_JARS=/opt/kafka-ds/jars
RUN python -m spark_conf.jars delta
ENTRYPOINT ["python", "-m", "spark_conf.console"]
