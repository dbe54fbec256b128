package load;

import java.lang.management.ManagementFactory;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** What the process prints: when measuring begins and ends, with its own CPU time, then the result. */
final class Report {
    private final Map<String, Object> values = new LinkedHashMap<>();

    static void measuring() {
        event("measuring");
    }

    static void measured() {
        event("measured");
    }

    private static void event(String name) {
        com.sun.management.OperatingSystemMXBean system =
                (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        System.out.printf("{\"event\":\"%s\",\"cpu_ns\":%d}%n", name, system.getProcessCpuTime());
        System.out.flush();
    }

    Report set(String name, long value) {
        values.put(name, value);
        return this;
    }

    Report set(String name, List<Values> microseconds) {
        values.put(name, microseconds);
        return this;
    }

    void print() {
        StringBuilder text = new StringBuilder("{\"event\":\"result\"");
        values.forEach((name, value) -> {
            text.append(",\"").append(name).append("\":");
            if (value instanceof List<?> parts) {
                text.append('[');
                parts.forEach(part -> ((Values) part).appendTo(text));
                text.append(']');
            } else {
                text.append(value);
            }
        });
        System.out.println(text.append('}'));
        System.out.flush();
    }
}
