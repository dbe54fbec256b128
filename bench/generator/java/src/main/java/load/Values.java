package load;

import java.util.Arrays;

/** Numbers of microseconds, as many as come. Of one thread. */
final class Values {
    private long[] values = new long[1 << 12];
    private int size;

    void add(long value) {
        if (size == values.length) {
            values = Arrays.copyOf(values, 2 * size);
        }
        values[size++] = value;
    }

    int size() {
        return size;
    }

    void appendTo(StringBuilder text) {
        for (int at = 0; at < size; at++) {
            if (text.charAt(text.length() - 1) != '[') {
                text.append(',');
            }
            text.append(values[at]);
        }
    }
}
