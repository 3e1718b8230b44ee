package org.apache.kafka.common.test.junit;

import kafka.server.ControllerServer;
import kafka.server.KafkaBroker;
import kafka.server.KafkaConfig;

import org.apache.kafka.clients.CommonClientConfigs;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.admin.TopicListing;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.clients.consumer.GroupProtocol;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AccessControlEntryFilter;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.SaslConfigs;
import org.apache.kafka.common.config.TopicConfig;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.network.ListenerName;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.requests.AbstractResponse;
import org.apache.kafka.common.requests.MetadataRequest;
import org.apache.kafka.common.requests.MetadataResponse;
import org.apache.kafka.common.requests.RequestHeader;
import org.apache.kafka.common.test.ClusterInstance;
import org.apache.kafka.common.test.JaasUtils;
import org.apache.kafka.common.test.api.ClusterConfig;
import org.apache.kafka.common.test.api.TestKitDefaults;
import org.apache.kafka.common.test.api.Type;
import org.apache.kafka.coordinator.group.GroupCoordinator;
import org.apache.kafka.metadata.BrokerState;
import org.apache.kafka.metadata.MetadataCache;
import org.apache.kafka.server.authorizer.AclCreateResult;
import org.apache.kafka.server.authorizer.AclDeleteResult;
import org.apache.kafka.server.authorizer.Authorizer;
import org.apache.kafka.server.common.MetadataVersion;
import org.apache.kafka.server.fault.FaultHandlerException;

import org.junit.jupiter.api.extension.AfterEachCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.Extension;
import org.junit.jupiter.api.extension.TestTemplateInvocationContext;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * The cluster of a test of Apache Kafka, made of brokers of ours: each is a process, at an address that it keeps.
 *
 * Apache Kafka's extension makes one of this class for each test and type of cluster; of two classes with this name the
 * one that comes first on the class path is taken. A test is given what clients can see, and of a broker its id, its
 * settings, its state, how it is stopped and started, and what {@link InsideView} sees. Whatever else a test wants of a
 * broker lies inside Apache Kafka's process: it fails with {@link InsideTheBroker}. A traceback in a broker's log fails
 * the test, too.
 */
public class RaftClusterInvocationContext implements TestTemplateInvocationContext {
    private final String testName;
    private final ClusterConfig config;
    private final boolean combined;

    public RaftClusterInvocationContext(String testName, ClusterConfig config, boolean combined) {
        this.testName = testName;
        this.config = config;
        this.combined = combined;
    }

    @Override
    public String getDisplayName(int number) {
        String type = combined ? "Combined" : "Isolated";
        String tags = String.join(",", config.displayTags());
        return String.format("%s [%d] Type=Raft-%s, %s", testName, number, type, tags);
    }

    @Override
    public List<Extension> getAdditionalExtensions() {
        Processes cluster = new Processes(config, combined ? Type.CO_KRAFT : Type.KRAFT);
        return List.of(
            (BeforeEachCallback) context -> {
                if (config.isAutoStart()) {
                    cluster.start();
                }
            },
            (AfterEachCallback) context -> cluster.end(),
            new ClusterInstanceParameterResolver(cluster));
    }

    /** What a test asks for cannot be had from another process. */
    static final class InsideTheBroker extends UnsupportedOperationException {
        InsideTheBroker(String what) {
            super(what + " is inside Apache Kafka's process");
        }
    }

    /** Waits with patience: the machine may have other work. */
    static void await(String what, Attempt attempt) throws InterruptedException {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        Exception last = null;
        while (System.nanoTime() < end) {
            try {
                if (attempt.succeeds()) {
                    return;
                }
            } catch (ExecutionException | IOException notYet) {
                last = notYet;
            }
            Thread.sleep(50);
        }
        throw new AssertionError("waited 60 s for " + what, last);
    }

    interface Attempt {
        boolean succeeds() throws ExecutionException, IOException, InterruptedException;
    }

    /** One broker: the folder of its data, and its process while it runs. */
    static final class Broker {
        final int id;
        final int port;
        final Path folder;
        final Map<String, String> settings;
        /** The port of its metrics. */
        final int metrics = Processes.freePort();
        /** The port of the listener for those who may do all, if there is one. */
        int apart;
        private Process process;

        Broker(int id, int port, Path folder, Map<String, String> settings) {
            this.id = id;
            this.port = port;
            this.folder = folder;
            this.settings = settings;
            settings.put("metrics.port", String.valueOf(metrics));
        }

        Path log() {
            return folder.resolve("broker.log");
        }

        Stream<Path> disks() {
            return Stream.of(settings.get("log.dirs").split(",")).map(Path::of);
        }

        /** The folder of a partition's log; null if there is none. */
        Path replica(TopicPartition partition) {
            return disks().map(disk -> disk.resolve(partition.toString())).filter(Files::isDirectory).findFirst().orElse(null);
        }

        private Path said() {
            return folder.resolve("said");
        }

        /** Start the process, which does not serve yet. */
        void launch() {
            List<String> words = new ArrayList<>(List.of(System.getProperty("kafka_ds.python"), "-m", "broker"));
            settings.forEach((name, value) -> words.addAll(List.of("--override", name + "=" + value)));
            try {
                Files.createDirectories(folder);
                Files.deleteIfExists(said());
                process = new ProcessBuilder(words)
                    .redirectOutput(said().toFile())
                    .redirectError(ProcessBuilder.Redirect.appendTo(log().toFile()))
                    .start();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        /** Wait until it serves; it has said so. */
        void serves() throws InterruptedException {
            await("broker " + id, () -> {
                if (Files.readString(said()).startsWith("ready ")) {
                    return true;
                }
                if (!process.isAlive()) {
                    throw new IllegalStateException("broker " + id + " ended: " + lastLine());
                }
                return false;
            });
        }

        private String lastLine() throws IOException {
            List<String> lines = Files.readAllLines(log());
            return lines.isEmpty() ? "" : lines.get(lines.size() - 1);
        }

        boolean runs() {
            return process != null && process.isAlive();
        }

        void stop() {
            if (process != null) {
                process.destroy();
            }
        }

        /** What this very broker answers about itself, the others and a topic. */
        MetadataResponse metadata(String topic) throws IOException {
            return metadata(new MetadataRequest.Builder(List.of(topic), false));
        }

        /** What this very broker answers about itself, the others and all topics. */
        MetadataResponse metadata() throws IOException {
            return metadata(MetadataRequest.Builder.allTopics());
        }

        private MetadataResponse metadata(MetadataRequest.Builder builder) throws IOException {
            short version = 12;
            RequestHeader header = new RequestHeader(ApiKeys.METADATA, version, "harness", 0);
            ByteBuffer request = builder.build(version).serializeWithHeader(header);
            try (Socket socket = new Socket("localhost", port)) {
                DataOutputStream out = new DataOutputStream(socket.getOutputStream());
                out.writeInt(request.remaining());
                out.write(request.array(), request.arrayOffset() + request.position(), request.remaining());
                DataInputStream in = new DataInputStream(socket.getInputStream());
                ByteBuffer answer = ByteBuffer.wrap(in.readNBytes(in.readInt()));
                return (MetadataResponse) AbstractResponse.parseResponse(answer, header);
            }
        }

        void ends() {
            if (process == null) {
                return;
            }
            try {
                if (!process.waitFor(60, TimeUnit.SECONDS)) {
                    process.destroyForcibly().waitFor();
                }
            } catch (InterruptedException interrupted) {
                process.destroyForcibly();
                Thread.currentThread().interrupt();
            }
        }
    }

    /** The brokers of one test. */
    static final class Processes implements ClusterInstance {
        /** Below those that systems give to whoever asks for any. */
        private static final int FIRST_PORT = 20_000;
        private static final int LAST_PORT = 32_000;

        /** Settings that Apache Kafka does not know, which it ignores, its internal ones, and what tests only set to be fast. */
        private static boolean withoutSubject(String name) {
            ConfigDef.ConfigKey key = KAFKAS_SETTINGS.get(name);
            return (key == null || key.internalConfig) && !OURS.matcher(name).matches() || name.equals(APPEND_LINGER);
        }

        /**
         * The time after which a silent broker is fenced. Where a test wants a third of a second it is longer: each broker is a
         * process, and all of them share the machine with the test. The lease is renewed several times in it.
         */
        private static void fence(Map<String, String> settings) {
            String session = settings.get("broker.session.timeout.ms");
            if (session != null) {
                settings.put("broker.session.timeout.ms", String.valueOf(Math.max(SHORTEST_SESSION_MS, Integer.parseInt(session))));
                settings.put("controller.lease.interval.ms", String.valueOf(SHORTEST_SESSION_MS / 5));
            }
        }

        private static final int SHORTEST_SESSION_MS = 1_500;
        private static final Map<String, ConfigDef.ConfigKey> KAFKAS_SETTINGS = KafkaConfig.configDef().configKeys();
        private static final Pattern OURS =
            Pattern.compile("(lake|controller|listener\\.name|remote\\.log\\.storage|producer\\.id\\.expiration)\\..*");
        /** The number of the first controller where controllers are apart. Here each broker can be it, and has its settings. */
        private static final int FIRST_CONTROLLER = TestKitDefaults.CONTROLLER_ID_OFFSET;
        /** Records of groups are appended at once. */
        private static final String APPEND_LINGER = "group.coordinator.append.linger.ms";
        private static final String PRINCIPALS = "principal.builder.class";
        private static final String APART = "APART";
        private static final String ADMIN = "User:" + JaasUtils.KAFKA_PLAIN_ADMIN;

        private final ClusterConfig config;
        private final Type type;
        private final TreeMap<Integer, Broker> brokers = new TreeMap<>();
        private Path folder;
        private boolean started;
        private boolean stopped;

        Processes(ClusterConfig config, Type type) {
            this.config = config;
            this.type = type;
        }

        private void prepare() throws IOException {
            folder = Files.createTempDirectory("kafka-tests-");
            for (int id = 0; id < config.numBrokers(); id++) {
                Path own = folder.resolve("broker-" + id);
                int port = freePort();
                brokers.put(id, new Broker(id, port, own, settings(id, port, own)));
                if (mapsPrincipals()) {
                    setApart(brokers.get(id));
                }
            }
        }

        /** Whether a class of Apache Kafka is to say who clients are. Here they are nobody, which is a principal, too. */
        private boolean mapsPrincipals() {
            return config.serverProperties().containsKey(PRINCIPALS);
        }

        /** Brokers, and whoever waits for what a test has asked for, use another listener, where they may do all. */
        private static void setApart(Broker broker) {
            broker.apart = freePort();
            broker.settings.remove(PRINCIPALS);
            broker.settings.merge("listeners", APART + "://localhost:" + broker.apart, (had, more) -> had + "," + more);
            broker.settings.merge(
                "listener.security.protocol.map", APART + ":SASL_PLAINTEXT", (had, more) -> had + "," + more);
            broker.settings.put("inter.broker.listener.name", APART);
            addSasl(broker.settings, "listener.name." + APART.toLowerCase());
        }

        /** An administrator who may do all. */
        Admin allowed() {
            if (!mapsPrincipals()) {
                return admin();
            }
            String addresses = brokers.values().stream().map(each -> "localhost:" + each.apart).collect(Collectors.joining(","));
            return Admin.create(Map.of(
                CommonClientConfigs.BOOTSTRAP_SERVERS_CONFIG, addresses,
                CommonClientConfigs.SECURITY_PROTOCOL_CONFIG, SecurityProtocol.SASL_PLAINTEXT.name,
                SaslConfigs.SASL_MECHANISM, "PLAIN",
                SaslConfigs.SASL_JAAS_CONFIG, String.format(
                    "org.apache.kafka.common.security.plain.PlainLoginModule required username=\"%s\" password=\"%s\";",
                    JaasUtils.KAFKA_PLAIN_ADMIN, JaasUtils.KAFKA_PLAIN_ADMIN_PASSWORD)));
        }

        /** An entry for whom the class would take a client or a broker, for whom a client or a broker is here. */
        private AccessControlEntry here(AccessControlEntry entry) {
            return new AccessControlEntry(here(entry.principal()), entry.host(), entry.operation(), entry.permissionType());
        }

        private String here(String principal) {
            if (principal == null || !mapsPrincipals()) {
                return principal;
            }
            return principal.endsWith(":client") ? KafkaPrincipal.ANONYMOUS.toString() : ADMIN;
        }

        private List<CompletableFuture<AclCreateResult>> created(List<AclBinding> wanted) {
            List<AclBinding> bindings =
                wanted.stream().map(each -> new AclBinding(each.pattern(), here(each.entry()))).toList();
            try (Admin admin = allowed()) {
                admin.createAcls(bindings).all().get();
            } catch (ExecutionException | InterruptedException error) {
                throw new IllegalStateException(error);
            }
            return wanted.stream().map(each -> CompletableFuture.completedFuture(AclCreateResult.SUCCESS)).toList();
        }

        private AclBindingFilter here(AclBindingFilter filter) {
            AccessControlEntryFilter entry = filter.entryFilter();
            return new AclBindingFilter(filter.patternFilter(), new AccessControlEntryFilter(
                here(entry.principal()), entry.host(), entry.operation(), entry.permissionType()));
        }

        private Collection<AclBinding> bindings(AclBindingFilter filter) {
            try (Admin admin = allowed()) {
                return admin.describeAcls(here(filter)).values().get();
            } catch (ExecutionException | InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }

        private List<CompletableFuture<AclDeleteResult>> deleted(List<AclBindingFilter> wanted) {
            try (Admin admin = allowed()) {
                admin.deleteAcls(wanted.stream().map(this::here).toList()).all().get();
            } catch (ExecutionException | InterruptedException error) {
                throw new IllegalStateException(error);
            }
            return wanted.stream().map(each -> CompletableFuture.completedFuture(new AclDeleteResult(List.of()))).toList();
        }

        /** The levels of features that a test asks for, where the cluster does not begin with them; transactions have one. */
        private void setFeatures() {
            Map<String, FeatureUpdate> updates = new TreeMap<>();
            config.features().forEach((feature, level) -> updates.put(feature.featureName(), to(level)));
            updates.remove("transaction.version");
            if (config.metadataVersion() != MetadataVersion.latestTesting()) {
                updates.put(MetadataVersion.FEATURE_NAME, to(config.metadataVersion().featureLevel()));
            }
            if (updates.isEmpty()) {
                return;
            }
            try (Admin admin = allowed()) {
                admin.updateFeatures(updates, new UpdateFeaturesOptions()).all().get();
            } catch (ExecutionException | InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }

        private static FeatureUpdate to(short level) {
            return new FeatureUpdate(level, FeatureUpdate.UpgradeType.UNSAFE_DOWNGRADE);
        }

        private Map<String, String> settings(int id, int port, Path own) {
            String listener = clientListener().value();
            Map<String, String> settings = new TreeMap<>();
            settings.put("node.id", String.valueOf(id));
            settings.put("listeners", listener + "://localhost:" + port);
            settings.put("listener.security.protocol.map", listener + ":" + config.brokerSecurityProtocol());
            settings.put("inter.broker.listener.name", listener);
            settings.put("log.dirs", Stream.iterate(0, disk -> disk + 1)
                .limit(config.numDisksPerBroker())
                .map(disk -> own.resolve("data-" + disk).toString())
                .collect(Collectors.joining(",")));
            settings.put("lake.uri", folder.resolve("lake").toString());
            // As the tests of this repository have it, so that a cluster is there within a second or two.
            settings.put("broker.heartbeat.interval.ms", "300");
            settings.put("controller.lease.interval.ms", "500");
            settings.put("remote.log.storage.system.enable", "false");
            if (config.brokerSecurityProtocol() == SecurityProtocol.SASL_PLAINTEXT) {
                addSasl(settings, "listener.name." + listener.toLowerCase());
            }
            settings.putAll(config.serverProperties());
            config.perServerOverrideProperties().forEach((server, properties) -> {
                if (server >= FIRST_CONTROLLER) {
                    settings.putAll(properties);
                }
            });
            settings.putAll(config.perServerOverrideProperties().getOrDefault(id, Map.of()));
            settings.keySet().removeIf(Processes::withoutSubject);
            fence(settings);
            return settings;
        }

        private static void addSasl(Map<String, String> settings, String prefix) {
            settings.put("sasl.enabled.mechanisms", "PLAIN");
            settings.put("sasl.mechanism.inter.broker.protocol", "PLAIN");
            settings.put("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer");
            settings.put("allow.everyone.if.no.acl.found", "false");
            settings.put("super.users", "User:" + JaasUtils.KAFKA_PLAIN_ADMIN);
            settings.put(prefix + ".plain.sasl.jaas.config", String.format(
                "org.apache.kafka.common.security.plain.PlainLoginModule required username=\"%1$s\" password=\"%2$s\""
                    + " user_%1$s=\"%2$s\" user_%3$s=\"%4$s\";",
                JaasUtils.KAFKA_PLAIN_ADMIN, JaasUtils.KAFKA_PLAIN_ADMIN_PASSWORD,
                JaasUtils.KAFKA_PLAIN_USER1, JaasUtils.KAFKA_PLAIN_USER1_PASSWORD));
        }

        private static int freePort() {
            while (true) {
                int port = ThreadLocalRandom.current().nextInt(FIRST_PORT, LAST_PORT);
                try (ServerSocket probe = new ServerSocket(port, 1, InetAddress.getLoopbackAddress())) {
                    return probe.getLocalPort();
                } catch (IOException taken) {
                    continue;
                }
            }
        }

        @Override
        public void start() {
            if (started) {
                return;
            }
            started = true;
            try {
                prepare();
                brokers.values().forEach(Broker::launch);
                waitForReadyBrokers();
                setFeatures();
                MetricsPage.register(brokers.values().stream().filter(Broker::runs).map(each -> each.metrics).toList());
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            } catch (InterruptedException interrupted) {
                throw new IllegalStateException(interrupted);
            }
        }

        @Override
        public boolean started() {
            return started;
        }

        @Override
        public void stop() {
            stopped = true;
            brokers.values().forEach(Broker::stop);
            brokers.values().forEach(Broker::ends);
        }

        @Override
        public boolean stopped() {
            return stopped;
        }

        /** Stop the brokers, look into their logs, and leave nothing behind. */
        void end() throws IOException {
            stop();
            if (folder == null) {
                return;
            }
            List<String> mistakes = new ArrayList<>();
            for (Broker broker : brokers.values()) {
                String log = Files.exists(broker.log()) ? Files.readString(broker.log()) : "";
                if (log.contains("Traceback")) {
                    mistakes.add("broker " + broker.id + ":\n" + log.substring(log.indexOf("Traceback")));
                }
            }
            try (Stream<Path> all = Files.walk(folder)) {
                all.sorted(Comparator.reverseOrder()).forEach(path -> path.toFile().delete());
            }
            if (!mistakes.isEmpty()) {
                throw new AssertionError("a traceback in the log of " + String.join("\n", mistakes));
            }
        }

        @Override
        public void shutdownBroker(int id) {
            Broker broker = known(id);
            broker.stop();
            broker.ends();
        }

        @Override
        public void startBroker(int id) {
            Broker broker = known(id);
            broker.launch();
            try {
                broker.serves();
            } catch (InterruptedException interrupted) {
                throw new IllegalStateException(interrupted);
            }
        }

        private Broker known(int id) {
            return Optional.ofNullable(brokers.get(id))
                .orElseThrow(() -> new IllegalArgumentException("Unknown brokerId " + id));
        }

        @Override
        public void waitForReadyBrokers() throws InterruptedException {
            for (Broker broker : brokers.values()) {
                broker.serves();
            }
        }

        @Override
        public Type type() {
            return type;
        }

        @Override
        public ClusterConfig config() {
            return config;
        }

        @Override
        public ListenerName clientListener() {
            return config.brokerListenerName();
        }

        @Override
        public String bootstrapServers() {
            return brokers.values().stream().map(each -> "localhost:" + each.port).collect(Collectors.joining(","));
        }

        @Override
        public List<Integer> brokerBoundPorts() {
            return brokers.values().stream().map(each -> each.port).toList();
        }

        @Override
        public Set<Integer> brokerIds() {
            return Set.copyOf(brokers.keySet());
        }

        /** Each broker can be the controller. */
        @Override
        public Set<Integer> controllerIds() {
            return brokerIds();
        }

        /** A name which no listener has. */
        @Override
        public ListenerName controllerListenerName() {
            return new ListenerName("CONTROLLER");
        }

        @Override
        public List<Integer> controllerBoundPorts() {
            throw new InsideTheBroker("a controller's listener");
        }

        @Override
        public String bootstrapControllers() {
            throw new InsideTheBroker("a controller's listener");
        }

        /** Where principals are mapped the one that creates ACLs; else none to go through, see {@link InsideView.Controllers}. */
        @Override
        public Map<Integer, ControllerServer> controllers() {
            if (!mapsPrincipals()) {
                return new InsideView.Controllers(this);
            }
            return Map.of(0, InsideView.Controller.of(this, proxy(Authorizer.class, (proxy, method, words) -> {
                switch (method.getName()) {
                    case "createAcls":
                        return created((List<AclBinding>) words[1]);
                    case "deleteAcls":
                        return deleted((List<AclBindingFilter>) words[1]);
                    case "acls":
                        return bindings((AclBindingFilter) words[0]);
                    default:
                        throw new InsideTheBroker("Authorizer." + method.getName());
                }
            })));
        }

        static <T> T proxy(Class<T> kind, InvocationHandler answer) {
            return kind.cast(Proxy.newProxyInstance(kind.getClassLoader(), new Class<?>[] {kind}, answer));
        }

        Map<String, Uuid> topicIds() throws ExecutionException, InterruptedException {
            try (Admin admin = allowed()) {
                return admin.listTopics(new ListTopicsOptions().listInternal(true)).listings().get().stream()
                    .collect(Collectors.toMap(TopicListing::name, TopicListing::topicId));
            }
        }

        Optional<Integer> leaderOf(TopicPartition partition) {
            try (Admin admin = allowed()) {
                return admin.describeTopics(List.of(partition.topic())).allTopicNames().get().get(partition.topic())
                    .partitions().stream()
                    .filter(each -> each.partition() == partition.partition() && each.leader() != null)
                    .map(each -> each.leader().id())
                    .findFirst();
            } catch (ExecutionException notThere) {
                return Optional.empty();
            } catch (InterruptedException interrupted) {
                throw new IllegalStateException(interrupted);
            }
        }

        /** What the topic of groups is made with; the rest of the coordinator is inside Apache Kafka's process. */
        private static Object coordinator(Object proxy, Method method, Object[] words) {
            if (!method.getName().equals("groupMetadataTopicConfigs")) {
                throw new InsideTheBroker("GroupCoordinator." + method.getName());
            }
            Properties configs = new Properties();
            configs.setProperty(TopicConfig.CLEANUP_POLICY_CONFIG, TopicConfig.CLEANUP_POLICY_COMPACT);
            return configs;
        }

        @Override
        public List<Authorizer> authorizers() {
            throw new InsideTheBroker("Authorizer");
        }

        @Override
        public String clusterId() {
            try (Admin admin = admin()) {
                return admin.describeCluster().clusterId().get();
            } catch (ExecutionException | InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }

        @Override
        public Set<GroupProtocol> supportedGroupProtocols() {
            return Set.of(GroupProtocol.CLASSIC, GroupProtocol.CONSUMER);
        }

        @Override
        public Optional<FaultHandlerException> firstFatalException() {
            return Optional.empty();
        }

        @Override
        public Optional<FaultHandlerException> firstNonFatalException() {
            return Optional.empty();
        }

        @Override
        public Map<Integer, KafkaBroker> brokers() {
            Map<Integer, KafkaBroker> shown = new TreeMap<>();
            brokers.forEach((id, broker) -> shown.put(id, shown(broker)));
            return shown;
        }

        private KafkaBroker shown(Broker broker) {
            return proxy(KafkaBroker.class, (proxy, method, words) -> answer(broker, method, proxy, words));
        }

        private Object answer(Broker broker, Method method, Object proxy, Object[] words) {
            switch (method.getName()) {
                case "shutdown":
                    shutdownBroker(broker.id);
                    return null;
                case "startup":
                    startBroker(broker.id);
                    return null;
                case "awaitShutdown":
                    broker.ends();
                    return null;
                case "isShutdown":
                    return !broker.runs();
                case "brokerState":
                    // Apache Kafka's stays in the latter.
                    return broker.runs() ? BrokerState.RUNNING : BrokerState.SHUTTING_DOWN;
                case "logManager":
                    return InsideView.Logs.of(broker, this);
                case "metrics":
                    return MetricsPage.of(broker.metrics);
                case "socketServer":
                    return InsideView.Sockets.of(broker);
                case "replicaManager":
                    return InsideView.Replicas.of(InsideView.Logs.of(broker, this));
                case "metadataCache":
                    return proxy(MetadataCache.class, (cache, asked, about) -> InsideView.cached(broker, asked, about));
                case "groupCoordinator":
                    return proxy(GroupCoordinator.class, Processes::coordinator);
                case "boundPort":
                    return broker.port;
                case "clusterId":
                    return clusterId();
                case "config":
                    return kafkasView(broker);
                case "equals":
                    return proxy == words[0];
                case "hashCode":
                    return broker.id;
                case "toString":
                    return "broker " + broker.id;
                default:
                    throw new InsideTheBroker("KafkaBroker." + method.getName());
            }
        }

        /** The same settings, as Apache Kafka understands them. */
        private static KafkaConfig kafkasView(Broker broker) {
            Map<String, String> settings = new TreeMap<>(broker.settings);
            settings.keySet().removeIf(name -> name.startsWith("lake.") || name.startsWith("controller."));
            settings.put("process.roles", "broker");
            settings.put("controller.listener.names", "CONTROLLER");
            settings.put("controller.quorum.bootstrap.servers", "localhost:1");
            settings.merge("listener.security.protocol.map", "CONTROLLER:PLAINTEXT", (had, more) -> had + "," + more);
            return KafkaConfig.apply(settings, false);
        }

        private static int partitionsAt(Broker broker, String topic) throws IOException {
            return broker.metadata(topic).topicMetadata().stream().mapToInt(each -> each.partitionMetadata().size()).sum();
        }

        @Override
        public void waitTopicCreation(String topic, int partitions) throws InterruptedException {
            try (Admin admin = allowed()) {
                await(topic + " with leaders", () -> {
                    TopicDescription described = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
                    return described.partitions().size() == partitions
                        && described.partitions().stream().noneMatch(each -> each.leader() == null || each.leader().isEmpty());
                });
            }
            for (Broker broker : brokers.values()) {
                if (broker.runs() && config.brokerSecurityProtocol() == SecurityProtocol.PLAINTEXT && !mapsPrincipals()) {
                    await(topic + " at broker " + broker.id, () -> partitionsAt(broker, topic) == partitions);
                }
            }
        }

        @Override
        public void waitTopicDeletion(String topic) throws InterruptedException {
            try (Admin admin = allowed()) {
                await("deletion of " + topic, () -> {
                    try {
                        admin.describeTopics(List.of(topic)).allTopicNames().get();
                        return false;
                    } catch (ExecutionException error) {
                        return error.getCause() instanceof UnknownTopicOrPartitionException;
                    }
                });
            }
        }

        /** What clients do next is told by the brokers themselves if one of them is behind. */
        @Override
        public void ensureConsistentMetadata() {
        }

        @Override
        public void ensureConsistentMetadata(Collection<KafkaBroker> brokers, Collection<ControllerServer> controllers) {
        }

        @Override
        public void waitAcls(AclBindingFilter filter, Collection<AccessControlEntry> entries) throws InterruptedException {
            Set<AccessControlEntry> wanted = entries.stream().map(this::here).collect(Collectors.toSet());
            try (Admin admin = allowed()) {
                await("ACLs " + wanted, () -> admin.describeAcls(filter).values().get().stream()
                    .map(AclBinding::entry)
                    .collect(Collectors.toSet())
                    .equals(wanted));
            }
        }
    }
}
