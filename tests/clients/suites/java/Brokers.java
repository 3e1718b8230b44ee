package kafka_ds;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

/**
 * Brokers for tests that run in a JVM: processes, of ours or Apache Kafka's, kept by one of tests.clients.suites.served.
 *
 * The system property kafka_ds.served is its command. It ends with this process, however this one ends.
 */
public final class Brokers implements AutoCloseable {
    private final Path folder;
    private final Process process;
    private final PrintWriter told;
    private final BufferedReader said;
    private final String bootstrap;

    private Brokers(Path folder, Process process) throws IOException {
        this.folder = folder;
        this.process = process;
        this.told = new PrintWriter(process.getOutputStream(), true, StandardCharsets.UTF_8);
        this.said = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
        this.bootstrap = answer("ready");
    }

    /** So many brokers, numbered from 1, with these settings, once they serve. */
    public static Brokers start(Path folder, int count, Map<String, String> settings) {
        List<String> words = new ArrayList<>(List.of(System.getProperty("kafka_ds.served").split(" ")));
        words.addAll(List.of(folder.toString(), String.valueOf(count)));
        settings.forEach((name, value) -> words.add(name + "=" + value));
        try {
            return new Brokers(folder, new ProcessBuilder(words).redirectError(ProcessBuilder.Redirect.INHERIT).start());
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** The addresses of all brokers, which they keep. */
    public String bootstrap() {
        return bootstrap;
    }

    public void stopBroker(int number) {
        told.println("stop " + number);
        done();
    }

    public void startBroker(int number) {
        told.println("start " + number);
        done();
    }

    private void done() {
        try {
            answer("done");
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private String answer(String word) throws IOException {
        String line = said.readLine();
        if (line == null || !line.startsWith(word)) {
            throw new IllegalStateException("brokers in " + folder + " said " + line);
        }
        return line.substring(word.length()).strip();
    }

    /** Stop the brokers and leave nothing behind; an AssertionError if the log of one has a traceback. */
    @Override
    public void close() {
        told.close();
        try {
            String mistakes = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
            if (!process.waitFor(120, TimeUnit.SECONDS)) {
                process.destroyForcibly();
            }
            try (Stream<Path> all = Files.walk(folder)) {
                all.sorted(Comparator.reverseOrder()).forEach(path -> path.toFile().delete());
            }
            if (!mistakes.isBlank()) {
                throw new AssertionError(mistakes);
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        } catch (InterruptedException interrupted) {
            process.destroyForcibly();
            Thread.currentThread().interrupt();
        }
    }

    /** Wait with patience, since the machine may have other work, until something holds that may throw until then. */
    public static void await(String what, Callable<Boolean> holds) throws InterruptedException {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        Exception last = null;
        while (System.nanoTime() < end) {
            try {
                if (holds.call()) {
                    return;
                }
            } catch (InterruptedException interrupted) {
                throw interrupted;
            } catch (Exception notYet) {
                last = notYet;
            }
            Thread.sleep(50);
        }
        throw new AssertionError("waited 60 s for " + what, last);
    }
}
