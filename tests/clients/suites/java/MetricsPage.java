package org.apache.kafka.common.test.junit;

import com.yammer.metrics.core.CountedMeter;

import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.metrics.Gauge;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.server.metrics.KafkaYammerMetrics;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.OptionalDouble;
import java.util.TreeMap;
import java.util.function.ToDoubleFunction;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.DoubleStream;

/**
 * The metrics of a broker as its page for Prometheus shows them, under the names that Apache Kafka gives them.
 *
 * A name of the page is that of the MBean: its domain, its type and its name, in small letters, words joined by `_`.
 */
final class MetricsPage {
    private static final Pattern LINE = Pattern.compile("^(\\w+)(?:\\{(.*)})? (\\S+)$", Pattern.MULTILINE);
    private static final Pattern LABEL = Pattern.compile("(\\w+)=\"((?:[^\"\\\\]|\\\\.)*)\"");

    private MetricsPage() {
    }

    /** What a broker says now of a metric with exactly these labels; empty: it has none. */
    static OptionalDouble value(int port, String name, Map<String, String> labels) {
        Matcher line = LINE.matcher(read(port));
        while (line.find()) {
            if (line.group(1).equals(name) && labels(line.group(2)).equals(labels)) {
                return OptionalDouble.of(Double.parseDouble(line.group(3)));
            }
        }
        return OptionalDouble.empty();
    }

    /** A client of Java's would leave threads behind, for which a test fails. */
    private static String read(int port) {
        try (Socket socket = new Socket("localhost", port)) {
            socket.getOutputStream().write("GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n".getBytes(StandardCharsets.US_ASCII));
            return new String(socket.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        } catch (IOException error) {
            throw new UncheckedIOException("the metrics at port " + port, error);
        }
    }

    private static Map<String, String> labels(String given) {
        Map<String, String> found = new TreeMap<>();
        Matcher label = LABEL.matcher(given == null ? "" : given);
        while (label.find()) {
            found.put(label.group(1), label.group(2));
        }
        return found;
    }

    private static String word(String name) {
        return name.toLowerCase(Locale.ROOT).replaceAll("\\W", "_");
    }

    /**
     * Kafka's own metrics of one broker, as many as it has now: a group is an MBean's type, and tags are labels.
     *
     * Of a name on the page no one can tell `-` from `_`: these groups have only the former in their names and tags.
     */
    static Metrics of(int port) {
        Metrics metrics = new Metrics();
        Matcher line = LINE.matcher(read(port));
        while (line.find()) {
            String shown = line.group(1);
            Map<String, String> labels = labels(line.group(2));
            for (String group : List.of("Produce", "Fetch", "Request", "ControllerMutation", "group-coordinator-metrics")) {
                String head = "kafka_server_" + word(group) + "_";
                if (shown.startsWith(head)) {
                    Map<String, String> tags = new LinkedHashMap<>();
                    labels.forEach((label, value) -> tags.put(label.replace('_', '-'), value));
                    MetricName name = metrics.metricName(shown.substring(head.length()).replace('_', '-'), group, tags);
                    metrics.addMetric(name, (Gauge<Object>) (config, at) -> told(value(port, shown, labels)));
                }
            }
        }
        return metrics;
    }

    /** A count is a Long there. */
    private static Object told(OptionalDouble found) {
        double value = found.orElse(Double.NaN);
        return value == Math.rint(value) ? (Object) (long) value : (Object) value;
    }

    /** Yammer's metrics, of which Apache Kafka has one registry in a process: those of all brokers together. */
    static void register(Collection<Integer> ports) {
        gauge("kafka.controller", "KafkaController", "OfflinePartitionsCount", ports, DoubleStream::sum);
        gauge("kafka.controller", "KafkaController", "PreferredReplicaImbalanceCount", ports, DoubleStream::sum);
        gauge("kafka.server", "ReplicaManager", "UnderReplicatedPartitions", ports, DoubleStream::sum);
        for (String type : List.of("Accept", "Release", "Reject", "Renew")) {
            acknowledgements(type, ports);
        }
    }

    private static void acknowledgements(String type, Collection<Integer> ports) {
        LinkedHashMap<String, String> tags = new LinkedHashMap<>(Map.of("ackType", type));
        CountedMeter.register(
            KafkaYammerMetrics.defaultRegistry(),
            KafkaYammerMetrics.getMetricName("kafka.server", "ShareGroupMetrics", "RecordAcknowledgementsPerSec", tags),
            "records",
            () -> (long) all(ports, "kafka_server_sharegroupmetrics_recordacknowledgements_total", tags).sum());
    }

    private static DoubleStream all(Collection<Integer> ports, String shown, Map<String, String> labels) {
        return ports.stream()
            .map(port -> value(port, shown, labels))
            .filter(OptionalDouble::isPresent)
            .mapToDouble(OptionalDouble::getAsDouble);
    }

    private static void gauge(
        String domain, String type, String name, Collection<Integer> ports, ToDoubleFunction<DoubleStream> joined
    ) {
        com.yammer.metrics.core.MetricName known = KafkaYammerMetrics.getMetricName(domain, type, name);
        KafkaYammerMetrics.defaultRegistry().removeMetric(known);
        KafkaYammerMetrics.defaultRegistry().newGauge(known, new com.yammer.metrics.core.Gauge<Integer>() {
            @Override
            public Integer value() {
                String shown = word(domain) + "_" + word(type) + "_" + word(name);
                return (int) joined.applyAsDouble(all(ports, shown, Map.of()));
            }
        });
    }
}
