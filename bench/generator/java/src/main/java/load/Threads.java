package load;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/** The same work in several threads. */
final class Threads {
    /** A request that returns when it is answered. */
    interface Request {
        void send() throws Exception;
    }

    private Threads() {}

    static <T> List<T> run(int threads, Callable<T> work) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        try {
            List<Future<T>> running = new ArrayList<>();
            for (int thread = 0; thread < threads; thread++) {
                running.add(pool.submit(work));
            }
            List<T> found = new ArrayList<>();
            for (Future<T> one : running) {
                found.add(one.get());
            }
            return found;
        } finally {
            pool.shutdownNow();
        }
    }

    /** Send requests of so many messages from all threads: first to warm up, then measured and reported. */
    static void measure(Numbers numbers, int messages, Request request) throws Exception {
        int threads = numbers.of("threads");
        untilTime(threads, numbers.of("warmUpMs"), request);
        Report.measuring();
        long began = System.nanoTime();
        List<Values> latencies = untilTime(threads, numbers.of("ms"), request);
        long tookUs = (System.nanoTime() - began) / 1_000;
        Report.measured();
        long measured = (long) messages * latencies.stream().mapToInt(Values::size).sum();
        new Report().set("measured", measured).set("took_us", tookUs).set("latency", latencies).print();
    }

    /** Returns the latency of each request, by threads. */
    private static List<Values> untilTime(int threads, long ms, Request request) throws Exception {
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(ms);
        return run(threads, () -> {
            Values latencies = new Values();
            while (System.nanoTime() < end) {
                long began = System.nanoTime();
                request.send();
                latencies.add((System.nanoTime() - began) / 1_000);
            }
            return latencies;
        });
    }
}
