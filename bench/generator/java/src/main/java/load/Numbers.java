package load;

import java.util.HashMap;
import java.util.Map;

/** The numbers of a load, from arguments of the form name=value. */
final class Numbers {
    private final Map<String, Integer> values = new HashMap<>();

    Numbers(String[] arguments) {
        for (int at = 2; at < arguments.length; at++) {
            String[] pair = arguments[at].split("=", 2);
            values.put(pair[0], Integer.valueOf(pair[1]));
        }
    }

    int of(String name) {
        Integer value = values.get(name);
        if (value == null) {
            throw new IllegalArgumentException("give " + name + "=...");
        }
        return value;
    }
}
