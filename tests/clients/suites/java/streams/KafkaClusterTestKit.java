package org.apache.kafka.common.test;

import kafka.server.BrokerServer;
import kafka.server.KafkaConfig;
import kafka_ds.Brokers;

import org.apache.kafka.common.config.ConfigDef;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;

/**
 * The cluster under Kafka Streams' EmbeddedKafkaCluster, made of brokers of ours: each is a process.
 *
 * It has of Apache Kafka's class of this name what that one uses. The brokers are numbered from 1, and of them only
 * their number can be seen.
 */
public class KafkaClusterTestKit implements AutoCloseable {
    private static final Map<String, ConfigDef.ConfigKey> KAFKAS_SETTINGS = KafkaConfig.configDef().configKeys();

    /** Makes a cluster of these nodes. */
    public static class Builder {
        private final TestKitNodes nodes;
        private final Map<String, String> settings = new TreeMap<>();

        public Builder(TestKitNodes nodes) {
            this.nodes = nodes;
        }

        public Builder setConfigProp(String name, Object value) {
            settings.put(name, value.toString());
            return this;
        }

        public KafkaClusterTestKit build() {
            int number = 0;
            Map<String, String> all = new TreeMap<>();
            settings.forEach((name, value) -> put(all, "", name, value));
            for (TestKitNode node : nodes.brokerNodes().values()) {
                String own = ++number + ":";
                node.propertyOverrides().forEach((name, value) -> put(all, own, name, value));
            }
            return new KafkaClusterTestKit(nodes, all);
        }

        /** But for those that Apache Kafka does not know, which it ignores, and its internal ones. */
        private static void put(Map<String, String> settings, String own, String name, String value) {
            ConfigDef.ConfigKey key = KAFKAS_SETTINGS.get(name);
            if (key != null && !key.internalConfig) {
                settings.put(own + name, value);
            }
        }
    }

    private final TestKitNodes nodes;
    private final Map<String, String> settings;
    private Brokers running;

    private KafkaClusterTestKit(TestKitNodes nodes, Map<String, String> settings) {
        this.nodes = nodes;
        this.settings = settings;
    }

    /** A folder needs no preparation. */
    public void format() {
    }

    public void startup() {
        try {
            running = Brokers.start(Files.createTempDirectory("streams-tests-"), nodes.brokerNodes().size(), settings);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** They are, once they have been started. */
    public void waitForReadyBrokers() {
    }

    public String bootstrapServers() {
        return running.bootstrap();
    }

    /** How many there are; what is inside of one lies in another process. */
    public Map<Integer, BrokerServer> brokers() {
        Map<Integer, BrokerServer> found = new HashMap<>();
        nodes.brokerNodes().keySet().forEach(id -> found.put(id, null));
        return found;
    }

    /** No fault of a broker gets here: a traceback in its log fails the class. */
    public MockFaultHandler nonFatalFaultHandler() {
        return new MockFaultHandler("of no broker");
    }

    @Override
    public void close() {
        if (running != null) {
            running.close();
        }
    }
}
