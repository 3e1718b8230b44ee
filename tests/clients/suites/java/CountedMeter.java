package com.yammer.metrics.core;

import java.lang.reflect.Proxy;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;

/** A meter whose count is somebody else's. It is here since Yammer keeps the constructor of meters to its package. */
public final class CountedMeter extends Meter {
    private static final ScheduledExecutorService NOBODY = (ScheduledExecutorService) Proxy.newProxyInstance(
        CountedMeter.class.getClassLoader(), new Class<?>[] {ScheduledExecutorService.class}, (proxy, method, words) -> null);

    private final LongSupplier counted;

    private CountedMeter(String what, LongSupplier counted) {
        super(NOBODY, what, TimeUnit.SECONDS, Clock.defaultClock());
        this.counted = counted;
    }

    /** Have a registry show this count, in place of what it shows by this name. */
    public static void register(MetricsRegistry registry, MetricName name, String what, LongSupplier counted) {
        registry.removeMetric(name);
        registry.getOrAdd(name, new CountedMeter(what, counted));
    }

    @Override
    public long count() {
        return counted.getAsLong();
    }

    @Override
    public void stop() {
    }
}
