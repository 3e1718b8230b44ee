package org.apache.kafka.common.test.junit;

import kafka.cluster.Partition;
import kafka.log.LogManager;
import kafka.network.SocketServer;
import kafka.server.ControllerServer;
import kafka.server.ReplicaManager;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.config.TopicConfig;
import org.apache.kafka.common.internals.Plugin;
import org.apache.kafka.common.memory.MemoryPool;
import org.apache.kafka.common.network.ListenerName;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.RecordVersion;
import org.apache.kafka.common.requests.MetadataResponse;
import org.apache.kafka.metadata.LeaderAndIsr;
import org.apache.kafka.server.authorizer.Authorizer;
import org.apache.kafka.storage.internals.log.LogAppendInfo;
import org.apache.kafka.storage.internals.log.LogCleaner;
import org.apache.kafka.storage.internals.log.LogOffsetMetadata;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;

import java.io.File;
import java.io.IOException;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.AbstractMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.function.BooleanSupplier;
import java.util.stream.Stream;

import scala.Option;
import scala.collection.Seq;
import scala.jdk.javaapi.CollectionConverters;
import sun.misc.Unsafe;

/**
 * What tests look for inside Apache Kafka's process, as far as it can be seen from outside: which replicas a broker has
 * (its folders say so), whether it leads them, what its settings are and what it knows of the cluster (it says so), how much
 * memory requests take (its metrics say so), and a log: its high watermark, its end, how far it is cleaned, a segment that
 * is rolled, and old messages that are appended to it.
 *
 * The classes are Apache Kafka's; objects of ours have none of its state, and no constructor runs.
 */
final class InsideView {
    private static final long ROLL_LIMIT_MS = 30_000;

    private InsideView() {
    }

    static final class Logs extends LogManager {
        private RaftClusterInvocationContext.Broker broker;
        private RaftClusterInvocationContext.Processes cluster;

        private Logs() {
            super(null, null, null, null, null, 0, 0, 0, 0, 0, 0, null, 0, null, null, null, null, false, 0, null);
        }

        static Logs of(RaftClusterInvocationContext.Broker broker, RaftClusterInvocationContext.Processes cluster) {
            Logs logs = without(Logs.class);
            logs.broker = broker;
            logs.cluster = cluster;
            return logs;
        }

        @Override
        public Option<UnifiedLog> getLog(TopicPartition partition, boolean isFuture) {
            SeenLog log = without(SeenLog.class);
            log.folder = broker.replica(partition);
            log.broker = broker;
            log.cluster = cluster;
            return log.folder == null ? Option.empty() : Option.apply(log);
        }

        /** What the broker says of its settings now. */
        @Override
        public ProducerStateManagerConfig producerStateManagerConfig() {
            ConfigResource resource = new ConfigResource(ConfigResource.Type.BROKER, String.valueOf(broker.id));
            try (Admin admin = cluster.allowed()) {
                String value = admin.describeConfigs(List.of(resource)).all().get().get(resource)
                    .get("producer.id.expiration.ms").value();
                return new ProducerStateManagerConfig(Integer.parseInt(value), true);
            } catch (ExecutionException | InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }

        @Override
        public LogCleaner cleaner() {
            Cleaner cleaner = without(Cleaner.class);
            cleaner.broker = broker;
            return cleaner;
        }

        @Override
        public Seq<File> liveLogDirs() {
            return CollectionConverters.asScala(broker.disks().map(Path::toFile).toList()).toSeq();
        }
    }

    /** The log cleaner: how far it has come is in the folder. */
    static final class Cleaner extends LogCleaner {
        private RaftClusterInvocationContext.Broker broker;

        private Cleaner() {
            super(null, null, null, null, null);
        }

        @Override
        public boolean awaitCleaned(TopicPartition partition, long offset, long limitMs) throws InterruptedException {
            return await(limitMs, () -> checkpointed(broker.replica(partition), "cleaner-offset-checkpoint").orElse(0) >= offset);
        }
    }

    static final class Replicas extends ReplicaManager {
        private Logs logs;

        private Replicas() {
            super(null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
                null, null, null);
        }

        static Replicas of(Logs logs) {
            Replicas replicas = without(Replicas.class);
            replicas.logs = logs;
            return replicas;
        }

        @Override
        public LogManager logManager() {
            return logs;
        }

        @Override
        public Option<UnifiedLog> localLog(TopicPartition partition) {
            return logs.getLog(partition, false);
        }

        @Override
        public Option<Partition> onlinePartition(TopicPartition partition) {
            if (!logs.broker.runs() || logs.broker.replica(partition) == null) {
                return Option.empty();
            }
            Replica replica = without(Replica.class);
            replica.leader = logs.cluster.leaderOf(partition);
            replica.id = logs.broker.id;
            return Option.apply(replica);
        }
    }

    static final class Replica extends Partition {
        private Optional<Integer> leader;
        private int id;

        private Replica() {
            super(null, 0, 0, null, null, null, null, null, null, null, null);
        }

        @Override
        public Option<Object> leaderIdIfLocal() {
            return leader.equals(Optional.of(id)) ? Option.apply(id) : Option.empty();
        }
    }

    /** A log: what its folder says; and messages that an Apache Kafka of old has written, which the broker finds when it starts. */
    static final class SeenLog extends UnifiedLog {
        private Path folder;
        private RaftClusterInvocationContext.Broker broker;
        private RaftClusterInvocationContext.Processes cluster;

        private SeenLog() throws IOException {
            super(0, null, null, 0, null, null, null, false, null);
        }

        @Override
        public LogAppendInfo appendAsLeaderWithRecordVersion(MemoryRecords records, int epoch, RecordVersion version) {
            cluster.shutdownBroker(broker.id);
            try (FileChannel log = FileChannel.open(
                folder.resolve("00000000000000000000.log"), StandardOpenOption.CREATE, StandardOpenOption.WRITE)) {
                records.writeFullyTo(log);
                for (Path disk : broker.disks().toList()) {
                    Files.deleteIfExists(disk.resolve(".kafka_cleanshutdown"));
                    Files.deleteIfExists(disk.resolve("recovery-point-offset-checkpoint"));
                }
            } catch (IOException error) {
                throw new IllegalStateException(error);
            }
            cluster.startBroker(broker.id);
            return null;
        }

        @Override
        public LogOffsetMetadata logEndOffsetMetadata() {
            return null;
        }

        /** As the broker keeps it in its folder, every few seconds. */
        @Override
        public long highWatermark() {
            return checkpointed(folder, "replication-offset-checkpoint").orElse(0);
        }

        /** Of the only replica, as any administrator knows it. */
        @Override
        public long logEndOffset() {
            try (Admin admin = cluster.allowed()) {
                return admin.listOffsets(Map.of(partition(), OffsetSpec.latest())).partitionResult(partition()).get().offset();
            } catch (ExecutionException | InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }

        /** The broker rolls a segment that is older than segment.ms, which is short until it has done so. */
        @Override
        public LogSegment roll() {
            long end = logEndOffset();
            ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, partition().topic());
            ConfigEntry age = new ConfigEntry(TopicConfig.SEGMENT_MS_CONFIG, "1");
            try (Admin admin = cluster.allowed()) {
                admin.incrementalAlterConfigs(Map.of(topic, List.of(new AlterConfigOp(age, AlterConfigOp.OpType.SET)))).all().get();
                if (!await(ROLL_LIMIT_MS, () -> Files.exists(folder.resolve(String.format("%020d.log", end))))) {
                    throw new IllegalStateException("no segment of " + folder + " begins at " + end);
                }
                admin.incrementalAlterConfigs(Map.of(topic, List.of(new AlterConfigOp(age, AlterConfigOp.OpType.DELETE)))).all().get();
            } catch (ExecutionException | InterruptedException error) {
                throw new IllegalStateException(error);
            }
            return null;
        }

        private TopicPartition partition() {
            String name = folder.getFileName().toString();
            int dash = name.lastIndexOf('-');
            return new TopicPartition(name.substring(0, dash), Integer.parseInt(name.substring(dash + 1)));
        }

        @Override
        public Optional<LogOffsetMetadata> maybeIncrementHighWatermark(LogOffsetMetadata end) {
            return Optional.empty();
        }
    }

    /** The port of the broker, and the memory of requests, of which its metrics tell. */
    static final class Sockets extends SocketServer {
        private int port;
        /** Tests look for it by this name. */
        private MemoryPool memoryPool;

        private Sockets() {
            super(null, null, null, null, null, null, null);
        }

        static Sockets of(RaftClusterInvocationContext.Broker broker) {
            Sockets sockets = without(Sockets.class);
            sockets.port = broker.port;
            sockets.memoryPool = new RequestMemory(broker.metrics);
            return sockets;
        }

        @Override
        public int boundPort(ListenerName listener) {
            return port;
        }
    }

    private record RequestMemory(int port) implements MemoryPool {
        @Override
        public long availableMemory() {
            return (long) MetricsPage.value(port, "kafka_network_socketserver_memorypoolavailable", Map.of()).orElseThrow();
        }

        @Override
        public ByteBuffer tryAllocate(int size) {
            throw new RaftClusterInvocationContext.InsideTheBroker("MemoryPool.tryAllocate");
        }

        @Override
        public void release(ByteBuffer memory) {
            throw new RaftClusterInvocationContext.InsideTheBroker("MemoryPool.release");
        }

        @Override
        public long size() {
            throw new RaftClusterInvocationContext.InsideTheBroker("MemoryPool.size");
        }

        @Override
        public boolean isOutOfMemory() {
            return availableMemory() <= 0;
        }
    }

    /** A controller by the number of a broker. There are none to go through: nobody can wait for what happens inside one. */
    static final class Controllers extends AbstractMap<Integer, ControllerServer> {
        private final RaftClusterInvocationContext.Processes cluster;

        Controllers(RaftClusterInvocationContext.Processes cluster) {
            this.cluster = cluster;
        }

        @Override
        public ControllerServer get(Object id) {
            return Controller.of(cluster, null);
        }

        @Override
        public Set<Integer> keySet() {
            return cluster.controllerIds();
        }

        @Override
        public Set<Entry<Integer, ControllerServer>> entrySet() {
            return Set.of();
        }
    }

    static final class Controller extends ControllerServer {
        private RaftClusterInvocationContext.Processes cluster;
        private Authorizer authorizer;

        private Controller() {
            super(null, null, null);
        }

        static Controller of(RaftClusterInvocationContext.Processes cluster, Authorizer authorizer) {
            Controller controller = without(Controller.class);
            controller.cluster = cluster;
            controller.authorizer = authorizer;
            return controller;
        }

        /** It knows the topics' ids, as any administrator. */
        @Override
        public org.apache.kafka.controller.Controller controller() {
            return RaftClusterInvocationContext.Processes.proxy(
                org.apache.kafka.controller.Controller.class, (proxy, method, words) -> {
                    if (!method.getName().equals("findAllTopicIds")) {
                        throw new RaftClusterInvocationContext.InsideTheBroker("Controller." + method.getName());
                    }
                    return CompletableFuture.completedFuture(cluster.topicIds());
                });
        }

        @Override
        public Option<Plugin<Authorizer>> authorizerPlugin() {
            return Option.apply(Plugin.wrapInstance(authorizer, null, "authorizer.class.name"));
        }
    }

    /** What a broker's cache of metadata holds, which are its answers to clients. */
    static Object cached(RaftClusterInvocationContext.Broker broker, Method method, Object[] words) throws IOException {
        switch (method.getName()) {
            case "getAliveBrokerNodes":
                return List.copyOf(broker.metadata().brokers());
            case "contains":
                return words[0] instanceof TopicPartition asked
                    ? partitions(broker, asked.topic()).stream().flatMap(List::stream)
                        .anyMatch(each -> each.partition() == asked.partition())
                    : partitions(broker, (String) words[0]).isPresent();
            case "numPartitions":
                return partitions(broker, (String) words[0]).map(List::size);
            case "getLeaderAndIsr":
                return partitions(broker, (String) words[0]).flatMap(all -> all.stream()
                    .filter(each -> each.partition() == (int) words[1] && each.leaderId.isPresent())
                    .map(each -> new LeaderAndIsr(each.leaderId.get(), each.inSyncReplicaIds))
                    .findFirst());
            default:
                throw new RaftClusterInvocationContext.InsideTheBroker("MetadataCache." + method.getName());
        }
    }

    private static Optional<List<MetadataResponse.PartitionMetadata>> partitions(
        RaftClusterInvocationContext.Broker broker, String topic) throws IOException {
        return broker.metadata(topic).topicMetadata().stream()
            .map(MetadataResponse.TopicMetadata::partitionMetadata)
            .filter(all -> !all.isEmpty())
            .findFirst();
    }

    /** What a checkpoint beside the log says of it, if anything. */
    private static OptionalLong checkpointed(Path folder, String checkpoint) {
        String entry = folder.getFileName().toString().replaceFirst("-([0-9]+)$", " $1 ");
        try (Stream<String> lines = Files.lines(folder.resolveSibling(checkpoint))) {
            return lines.filter(line -> line.startsWith(entry))
                .mapToLong(line -> Long.parseLong(line.substring(entry.length())))
                .findFirst();
        } catch (NoSuchFileException notYet) {
            return OptionalLong.empty();
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    private static boolean await(long limitMs, BooleanSupplier condition) throws InterruptedException {
        long end = System.nanoTime() + limitMs * 1_000_000;
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() > end) {
                return false;
            }
            Thread.sleep(50);
        }
        return true;
    }

    private static <T> T without(Class<T> kind) {
        try {
            Field field = Unsafe.class.getDeclaredField("theUnsafe");
            field.setAccessible(true);
            return kind.cast(((Unsafe) field.get(null)).allocateInstance(kind));
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }
}
